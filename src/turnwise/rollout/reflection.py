"""A built-in workflow that lets a model try again: play, and after a failure say what to do differently, and play anew.

`rollout.workflow: reflect_and_retry` with `workflow_args: {max_attempts: 2}`. Every call is trained, the reflection
too. The reward of an attempt is what the world gave in it, so that a run is worth what its last attempt earned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.context.answer import show_history
from turnwise.rollout.environment import EnvironmentWorkflow
from turnwise.rollout.workflow import read_count
from turnwise.types import Message, Trajectory

_ASK = "You did not succeed. Say in one sentence what you will do differently."


class ReflectAndRetryWorkflow(EnvironmentWorkflow):
    """See the module's text. Turns and reflections are steps, counted through all attempts."""

    arg_names = frozenset({"max_attempts"})
    is_cut_at_calls = True

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        _max_attempts(workflow_args)

    async def run(self) -> Trajectory:
        notes = ""
        for _ in range(_max_attempts(self.task.workflow_args) - 1):
            await self.play_episode(notes)
            if self.episode.is_success or self.episode.failure:
                return self.end()
            # Only the last attempt is paid for.
            self.facts = {step: replace(known, reward=0.0) for step, known in self.facts.items()}
            notes = await self._reflect()
        await self.play_episode(notes)
        return self.end()

    async def _reflect(self) -> str:
        episode = self.episode
        conversation = show_history(episode.about, episode.history, self.task.context)
        conversation[-1] = Message("user", f"{conversation[-1].text}\n{_ASK}")
        (reply,) = await self.model.chat_async(conversation)
        self.model.step += 1
        return f"Earlier you failed and said: {reply.response_text}\n"


def _max_attempts(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_attempts", 2)

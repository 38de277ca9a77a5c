"""A built-in workflow that lets a model try again: play, and after a failure say what to do differently, and play anew.

`rollout.workflow: reflect_and_retry` with `workflow_args: {max_attempts: 2}`. Every call is trained, the reflection
too. The reward of an attempt is what the world gave in it, so that a run is worth what its last attempt earned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.rollout.env_steps import EnvironmentPlayer
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.step_wise import StepFacts, Workflow, WorkflowTask, read_count
from turnwise.types import Message, StopReason, Trajectory

_ASK = "You did not succeed. Say in one sentence what you will do differently."


class ReflectAndRetryWorkflow(Workflow):
    """See the module's text. Turns and reflections are steps, counted through all attempts."""

    arg_names = frozenset({"max_attempts"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        _max_attempts(workflow_args)

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self._max_attempts = _max_attempts(task.workflow_args)
        self._player = EnvironmentPlayer(task, model)
        self._facts: dict[int, StepFacts] = {}

    async def run(self) -> Trajectory:
        rewards: dict[int, float] = {}
        notes = ""
        for attempt in range(self._max_attempts):
            rewards = await self._play(notes)
            if self._player.is_success or attempt == self._max_attempts - 1:
                break
            notes = await self._reflect()
        stop_reason = self._player.stop_reason or StopReason.TERMINATED
        return self.finish(rewards, stop_reason=stop_reason, facts=self._facts)

    async def _play(self, notes: str) -> dict[int, float]:
        """One attempt; what its steps earned."""
        await self._player.reset()
        rewards: dict[int, float] = {}
        while self._player.stop_reason is None:
            rewards[self.model.step] = await self._player.play_turn(notes=notes)
            self._facts[self.model.step] = self._player.facts[-1]
            self.model.step += 1
        return rewards

    async def _reflect(self) -> str:
        conversation = self._player.messages()
        conversation[-1] = Message("user", f"{conversation[-1].content}\n{_ASK}")
        (reply,) = await self.model.chat_async(conversation)
        self.model.step += 1
        return f"Earlier you failed and said: {reply.response_text}\n"

    def is_success(self, total_reward: float) -> bool:
        return self._player.is_success

    def close(self) -> None:
        self._player.env.close()


def _max_attempts(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_attempts", 2)

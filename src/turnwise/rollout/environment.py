"""The built-in workflows that let a model play any environment turn by turn.

`environment` records a whole episode as one unbroken sequence; `step_wise_environment` makes each turn a record with
the reward that the world gave it, `reward_propagation_environment` gives the run its return at the end, and
`single_turn` takes one turn. The conversation, its window and the answer format are those of `context`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.context.answer import parse_answer, show_history
from turnwise.context.recorder import Response
from turnwise.errors import ContextOverflow
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.workflow import Workflow, WorkflowTask, read_count
from turnwise.types import Message, StopReason, Trajectory


class EnvironmentWorkflow(Workflow):
    """`rollout.workflow: environment`: the model plays an environment turn by turn."""

    arg_names = frozenset()
    pays_itself = False
    is_cut_at_calls = False

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self.episode = task.open_episode(max_turns=self.max_turns)

    @property
    def max_turns(self) -> int | None:
        """Most turns of a run, where it is fewer than `rollout.max_turns`."""
        return None

    async def run(self) -> Trajectory:
        await self.play_episode()
        return self.end()

    async def play_episode(self, notes: str = "") -> None:
        """From the start until the world, a budget or the context ends it; `notes` stand before the first text."""
        await self.episode.start_soon()
        try:
            while self.episode.stop_reason is None:
                await self.play_turn(notes)
        except ContextOverflow as overflow:
            self.episode.stop(StopReason.CONTEXT_OVERFLOW, str(overflow))

    async def play_turn(self, notes: str = "") -> None:
        """One reply, and its actions in the world."""
        reply = await self.answer(self.show(notes))
        parsed = parse_answer(reply.response_text, self.task.context.answer)
        self.facts[self.model.step] = await self.episode.play_soon(parsed, reply.response_text)
        self.model.step += 1

    def show(self, notes: str = "") -> list[Message]:
        """The conversation that the next reply goes on from."""
        return show_history(self.episode.about, self.episode.history, self.task.context, notes=notes)

    async def answer(self, messages: list[Message]) -> Response:
        """The reply that is acted on."""
        (reply,) = await self.model.chat_async(messages, prefix=self.task.context.answer.forced_prefix)
        return reply

    def end(self) -> Trajectory:
        episode = self.episode
        return self.finish(
            stop_reason=episode.stop_reason or StopReason.TERMINATED,
            final_observation=episode.history[-1].state,
            failure=episode.failure,
        )

    def is_success(self, total_reward: float) -> bool:
        """An environment always says it."""
        return self.episode.is_success

    async def close(self) -> None:
        self.episode.close()


class StepWiseEnvironmentWorkflow(EnvironmentWorkflow):
    """`rollout.workflow: step_wise_environment`: every turn is a record with the reward that the world gave it."""

    arg_names = frozenset({"max_env_steps"})
    is_cut_at_calls = True

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        read_count(workflow_args, "max_env_steps", 1)

    @property
    def max_turns(self) -> int | None:
        return read_count(self.task.workflow_args, "max_env_steps", self.task.limits.max_turns)


class RewardPropagationEnvironmentWorkflow(StepWiseEnvironmentWorkflow):
    """`rollout.workflow: reward_propagation_environment`: the return of the run is the reward of all its turns."""

    def end(self) -> Trajectory:
        # It stands once, on the last turn: credit counts it for all of them.
        total = sum(known.reward for known in self.facts.values())
        self.facts = {step: replace(known, reward=0.0) for step, known in self.facts.items()}
        if self.facts:
            last = max(self.facts)
            self.facts[last] = replace(self.facts[last], reward=total)
        return super().end()


class SingleTurnWorkflow(RewardPropagationEnvironmentWorkflow):
    """`rollout.workflow: single_turn`: one reply, whatever `rollout.max_turns` says."""

    arg_names = frozenset()

    @property
    def max_turns(self) -> int | None:
        return 1

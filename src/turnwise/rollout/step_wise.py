"""Workflows that are written as steps: a program of a user's own around the model, whose every call is a record.

`StepWiseRewardWorkflow` asks for a reward after each step, `RewardPropagationWorkflow` for one after the last. A user
writes `step` and `reward`, plain or as coroutines; plain code runs in a thread of its own, so that it may block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from turnwise.context.recorder import Response
from turnwise.errors import ContextOverflow, RewardError, WorkflowError
from turnwise.infra.untrusted import parse_reward
from turnwise.rollout.workflow import Workflow, read_count
from turnwise.rollout_io import TurnFacts
from turnwise.types import StopReason, Trajectory


class StepWorkflow(Workflow):
    """Steps until the user's `step` says that it was the last, or the budget is used up."""

    stop_reason: StopReason = StopReason.TERMINATED
    """Set it in `step` where the last step was not an end: a time limit of the world's own, for example."""

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        read_count(workflow_args, "max_env_steps", 1)

    @property
    def max_step_num(self) -> int:
        """Most steps of a run: `max_env_steps` of `rollout.workflow_args`, or `rollout.max_turns`."""
        return read_count(self.task.workflow_args, "max_env_steps", self.task.limits.max_turns)

    @abstractmethod
    def step(self, step_num: int) -> Any:
        """One step: any number of model calls, and whatever the world does. True: go on. May be a coroutine."""

    def note(self, **facts: Any) -> None:
        """Keep what is worth keeping of the step that is under way, for reports and shaping: see `TurnFacts`."""
        self.facts[self.model.step] = replace(self.facts.get(self.model.step, TurnFacts()), **facts)

    async def _play_steps(self) -> tuple[int, StopReason]:
        """The number of steps taken, and why there are no more."""
        for number in range(self.max_step_num):
            self.model.step = number
            try:
                goes_on = await self._call(self.step, number)
            except ContextOverflow:
                return number, StopReason.CONTEXT_OVERFLOW
            if not isinstance(goes_on, bool):
                raise WorkflowError(
                    f"{type(self).__name__}.step({number}) returned {goes_on!r}; expected True to go on, or False."
                )
            await self._after_step(number)
            if not goes_on:
                return number + 1, self.stop_reason
        return self.max_step_num, StopReason.MAX_TURNS

    async def _after_step(self, number: int) -> None:
        """What happens between two steps."""

    def _known(self, calls: list[Response]) -> list[Response]:
        """Calls with what is known of their steps."""
        facts = [self.facts.get(call.step, TurnFacts()) for call in calls]
        return [
            replace(call, reward=known.reward, metrics=dict(known.metrics), info=dict(known.info))
            for call, known in zip(calls, facts, strict=True)
        ]

    async def _ask(self, reward: Callable[..., Any], *args: object) -> float:
        given = await self._call(reward, *args)
        try:
            return parse_reward(given, f"{type(self).__name__}.reward returned")
        except RewardError as error:
            raise WorkflowError(str(error)) from error

    def _end(self, num_steps: int, stop_reason: StopReason, reward: float = 0.0) -> Trajectory:
        if self.model.calls:
            last = self.model.calls[-1].step
            known = self.facts.get(last, TurnFacts())
            self.facts[last] = replace(known, info={**known.info, "actual_env_steps": num_steps})
        return self.finish(reward, stop_reason=stop_reason)


class StepWiseRewardWorkflow(StepWorkflow):
    """A reward for every step: write `step(step_num) -> bool` and `reward(exps, step_num) -> float`."""

    @abstractmethod
    def reward(self, exps: list[Response], step_num: int) -> Any:
        """What the step just taken is worth; `exps` are its model calls. May be a coroutine."""

    async def run(self) -> Trajectory:
        return self._end(*await self._play_steps())

    async def _after_step(self, number: int) -> None:
        self.note(reward=await self._ask(self.reward, self._known(self.model.calls_of(number)), number))


class RewardPropagationWorkflow(StepWorkflow):
    """One reward for the whole run, for all its steps: write `step(step_num) -> bool` and `reward(exps) -> float`."""

    @abstractmethod
    def reward(self, exps: list[Response]) -> Any:
        """What the run is worth; `exps` are all its model calls. May be a coroutine."""

    async def run(self) -> Trajectory:
        num_steps, stop_reason = await self._play_steps()
        return self._end(num_steps, stop_reason, await self._ask(self.reward, self._known(self.model.calls)))

"""Workflows that users write: a program of their own around the model, whose every call becomes a training record.

`StepWiseRewardWorkflow` asks for a reward after each step, `RewardPropagationWorkflow` for one after the last. A user
writes `step` and `reward`, plain or as coroutines; plain code runs in a thread of its own, so that it may block. The
tokens come from the model handle's record. An exception here is the runner's business: it becomes data.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, SupportsFloat

from turnwise.config.sections.context import ContextSettings
from turnwise.envs.base import BaseEnv
from turnwise.errors import ConfigError, ContextOverflow, WorkflowError, did_you_mean
from turnwise.rollout.limits import Limits
from turnwise.rollout.model_handle import ModelHandle, Response
from turnwise.types import Info, Segment, StopReason, Task, Trajectory, TrajectoryId, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTask:
    """What one run of a workflow is about."""

    id: TrajectoryId
    task: Task
    """The environment's tag, the seed and the split."""
    workflow_args: Mapping[str, Any]
    """`rollout.workflow_args` of the settings."""
    limits: Limits
    """The budget of an episode: `rollout.max_turns` and `rollout.max_actions`."""
    invalid_penalty: float
    """`rollout.invalid_penalty`."""
    context: ContextSettings
    """How the model is talked to in this environment."""
    dynamics_seed: int
    """For the chances taken while playing; siblings have different ones."""
    make_env: Callable[[], BaseEnv]
    """A fresh environment as the settings describe it."""
    threads: ThreadPoolExecutor
    """Where plain code runs."""

    @property
    def seed(self) -> int:
        return self.task.seed

    @property
    def split(self) -> str:
        return self.task.split

    @property
    def is_eval(self) -> bool:
        return self.task.split != "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What is worth keeping of a step beside its tokens and its reward."""

    actions: tuple[str, ...] = ()
    penalty: float = 0.0
    """Shaping, zero or negative."""
    info: Info = field(default_factory=dict)


_NO_FACTS = StepFacts()


class Workflow(ABC):
    """One play of a task by a program of your own. Write `run`, call the model, and return `self.finish(reward)`."""

    arg_names: ClassVar[frozenset[str] | None] = None
    """What `rollout.workflow_args` may hold; None: anything."""

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        if not isinstance(getattr(model, "calls", None), list):
            raise WorkflowError(
                f"{type(self).__name__} was given {type(model).__name__} as its model, which keeps no record of its "
                "calls; expected a ModelHandle."
            )
        self.task = task
        self.model = model

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        """Raise ConfigError for `rollout.workflow_args` that cannot work; called before anything is played."""
        for name in workflow_args:
            if cls.arg_names is not None and name not in cls.arg_names:
                raise ConfigError(
                    f"rollout.workflow_args.{name}: {cls.__name__} takes no such argument. "
                    f"{did_you_mean(name, cls.arg_names)}"
                )

    @abstractmethod
    async def run(self) -> Trajectory:
        """Play the task from the start to the end."""

    def close(self) -> None:
        """Let go of whatever the workflow holds; called once, however the run ended."""
        return

    def is_success(self, total_reward: float) -> bool:
        """Whether the run counts as a success in reports; by default, whether it earned something."""
        return total_reward > 0

    def finish(
        self,
        reward: float | Mapping[int, float],
        *,
        stop_reason: StopReason = StopReason.TERMINATED,
        facts: Mapping[int, StepFacts] | None = None,
        final_observation: str = "",
    ) -> Trajectory:
        """The run as a trajectory: `reward` is for its end, or by step; so are the facts."""
        calls = self.model.calls
        rewards = rewards_of_calls(reward, calls)
        return Trajectory(
            id=self.task.id,
            task=self.task.task,
            segments=segments_of_calls(calls),
            turns=turns_of_calls(calls, rewards, facts or {}),
            stop_reason=stop_reason,
            is_success=self.is_success(sum(rewards)),
            final_observation=final_observation,
        )

    async def _call(self, method: Callable[..., Any], *args: object) -> Any:
        """Call what the user wrote: a coroutine here, plain code in a thread."""
        if inspect.iscoroutinefunction(method):
            return await method(*args)
        return await asyncio.get_running_loop().run_in_executor(self.task.threads, method, *args)


class _SteppedWorkflow(Workflow):
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

    def facts(self) -> Mapping[int, StepFacts]:
        """What is worth keeping of each step, for reports and shaping; by default nothing."""
        return {}

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

    async def _ask(self, reward: Callable[..., Any], *args: object) -> float:
        given = await self._call(reward, *args)
        if not isinstance(given, SupportsFloat) or not math.isfinite(float(given)):
            raise WorkflowError(f"{type(self).__name__}.reward returned {given!r}; expected a finite number.")
        return float(given)

    def _end(self, reward: float | Mapping[int, float], num_steps: int, stop_reason: StopReason) -> Trajectory:
        facts = dict(self.facts())
        if self.model.calls:
            last = self.model.calls[-1].step
            known = facts.get(last, _NO_FACTS)
            facts[last] = replace(known, info={**known.info, "actual_env_steps": num_steps})
        return self.finish(reward, stop_reason=stop_reason, facts=facts)


class StepWiseRewardWorkflow(_SteppedWorkflow):
    """A reward for every step: write `step(step_num) -> bool` and `reward(exps, step_num) -> float`."""

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self._rewards: dict[int, float] = {}

    @abstractmethod
    def reward(self, exps: list[Response], step_num: int) -> Any:
        """What the step just taken is worth; `exps` are its model calls. May be a coroutine."""

    async def run(self) -> Trajectory:
        num_steps, stop_reason = await self._play_steps()
        return self._end(self._rewards, num_steps, stop_reason)

    async def _after_step(self, number: int) -> None:
        self._rewards[number] = await self._ask(self.reward, self.model.calls_of(number), number)


class RewardPropagationWorkflow(_SteppedWorkflow):
    """One reward for the whole run, for all its steps: write `step(step_num) -> bool` and `reward(exps) -> float`."""

    @abstractmethod
    def reward(self, exps: list[Response]) -> Any:
        """What the run is worth; `exps` are all its model calls. May be a coroutine."""

    async def run(self) -> Trajectory:
        num_steps, stop_reason = await self._play_steps()
        return self._end(await self._ask(self.reward, list(self.model.calls)), num_steps, stop_reason)


def read_count(workflow_args: Mapping[str, Any], name: str, default: int) -> int:
    """An argument that is a whole number above 0."""
    given = workflow_args.get(name, default)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"rollout.workflow_args.{name}: {given!r} given; expected a whole number above 0.")
    return given


def segments_of_calls(calls: Sequence[Response]) -> tuple[Segment, ...]:
    """One segment per call."""
    return tuple(call.as_segment(number) for number, call in enumerate(calls))


def turns_of_calls(
    calls: Sequence[Response], rewards: Sequence[float], facts: Mapping[int, StepFacts]
) -> tuple[Turn, ...]:
    """One turn per call; the facts of a step stand on its last."""
    last_of_step = {call.step: number for number, call in enumerate(calls)}
    turns = []
    for number, call in enumerate(calls):
        known = facts.get(call.step, _NO_FACTS) if last_of_step[call.step] == number else _NO_FACTS
        turns.append(
            Turn(
                index=number,
                segment_index=number,
                observation=call.observation,
                response_text=call.response_text,
                actions=known.actions,
                reward=rewards[number],
                penalty=known.penalty,
                policy_version=call.completion.policy_version,
                info=known.info,
                step=call.step,
            )
        )
    return tuple(turns)


def rewards_of_calls(reward: float | Mapping[int, float], calls: Sequence[Response]) -> list[float]:
    """The reward of a step stands on its last call; that of a step without one, on the last call before it."""
    rewards = [0.0] * len(calls)
    if not calls:
        return rewards
    by_step = reward if isinstance(reward, Mapping) else {calls[-1].step: reward}
    for step, earned in by_step.items():
        rewards[max((n for n, call in enumerate(calls) if call.step <= step), default=0)] += earned
    return rewards

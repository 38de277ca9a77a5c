"""A workflow is one play of a task by a program: it asks the model, acts in the world, and ends with a reward.

Every rollout is a workflow that runs as a task of its own and never waits for its siblings. The tokens come from the
model handle's record. An exception here is the scheduler's business: it becomes data on the Trajectory, with all that
was sampled and noted until then.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from turnwise.config.schema import ContextSettings, TurnwiseSettings
from turnwise.context.answer import build_messages, parse_answer
from turnwise.context.recorder import Response, make_trajectory
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import closing_env
from turnwise.errors import ConfigError, ContextOverflow, WorkflowError, did_you_mean
from turnwise.infra.untrusted import parse_success
from turnwise.protocols import ChatTemplate, Engine
from turnwise.rollout.episode import EnvEpisode, Limits
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout_io import TurnFacts
from turnwise.types import Message, Sampling, StopReason, Task, Trajectory, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenOpponent:
    """A policy that stays as it is."""

    name: str
    engine: Engine
    """Its own: nobody gives it other weights."""
    template: ChatTemplate
    context: ContextSettings | None
    """How it is talked to; None: as the policy is that it meets."""
    temperature: float

    def open_model(self, context: ContextSettings, *, seed: int, name: str) -> ModelHandle:
        """It, for one game; `seed` and `name` choose its dice."""
        return ModelHandle(
            self.engine,
            self.template,
            sampling=Sampling(temperature=self.temperature, max_new_tokens=context.max_response_tokens),
            max_tokens=context.max_tokens,
            seed=seed,
            name=name,
        )


class OpponentSampler(Protocol):
    """Whom the policy meets, task by task: the same for equal seeds, tasks and rollouts."""

    async def draw(self, tasks: Sequence[Task], rollout: int) -> Sequence[FrozenOpponent | None]:
        """For each task whoever all its siblings meet; None: each other. It may wait, within a deadline."""
        ...


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
    open_episode: Callable[..., EnvEpisode]
    """The task in such an environment, to be played turn by turn; `max_turns` shortens its budget."""
    threads: Executor
    """Where plain code runs."""
    rival: FrozenOpponent | None = None
    """The frozen policy that all siblings of the task meet; None: nobody, or each other."""

    @property
    def seed(self) -> int:
        return self.task.seed

    @property
    def split(self) -> str:
        return self.task.split

    @property
    def raw_task(self) -> Mapping[str, object]:
        """The row that the environment plays: for games of ALFWorld with `game_file`, elsewhere `seed` and `split`."""
        with closing_env(self.make_env()) as env:
            return env.raw_task(self.seed, self.split)

    @property
    def is_eval(self) -> bool:
        return self.task.split != "train"


class Workflow(ABC):
    """One play of a task by a program of your own. Write `run`, call the model, and return `self.finish(reward)`."""

    arg_names: ClassVar[frozenset[str] | None] = None
    """What `rollout.workflow_args` may hold; None: anything."""
    pays_itself: ClassVar[bool] = True
    """Whether its rewards are its own, so that a judge adds to them; otherwise they are the environment's."""
    is_cut_at_calls: ClassVar[bool] = True
    """Whether each call of the model is a record of its own; otherwise calls that extend each other are one."""
    seats: ClassVar[int] = 1
    """How many siblings play one game together while training; above 1 there is a `play_together`."""
    meets_rivals: ClassVar[bool] = False
    """Whether frozen policies are drawn for its tasks while training."""
    repeatable: bool = False
    """A word of Trinity-RFT: there it says that one object plays all siblings. Here each has an object of its own."""

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        if not isinstance(getattr(model, "calls", None), list):
            raise WorkflowError(
                f"{type(self).__name__} was given {type(model).__name__} as its model, which keeps no record of its "
                "calls; expected a ModelHandle."
            )
        self.task = task
        self.model = model
        self.facts: dict[int, TurnFacts] = {}
        """What is worth keeping of each step beside its tokens: its reward, its actions, what the world said."""

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        """Raise ConfigError for `rollout.workflow_args` that cannot work; called before anything is played."""
        for name in workflow_args:
            if cls.arg_names is not None and name not in cls.arg_names:
                raise ConfigError(
                    f"rollout.workflow_args.{name}: {cls.__name__} takes no such argument. "
                    f"{did_you_mean(name, cls.arg_names)}"
                )

    @classmethod
    def check_settings(cls, settings: TurnwiseSettings) -> None:
        """Raise ConfigError where the rest of a run does not go with it; called before anything is played."""
        return

    @abstractmethod
    async def run(self) -> Trajectory:
        """Play the task from the start to the end."""

    @classmethod
    async def play_together(cls, players: Sequence[Workflow]) -> list[Trajectory]:
        """The trajectories of `seats` siblings that meet in one world; what is raised here fails all of them."""
        raise WorkflowError(f"{cls.__name__} has no play_together; it seats {cls.seats} players.")

    def close(self) -> Any:
        """Let go of whatever the workflow holds; called once, however the run ended. May be a coroutine."""
        return

    def is_success(self, total_reward: float) -> bool | None:
        """Whether the goal was reached; None, the default, says nothing, and reports then say "unknown".

        What was earned is no answer where rewards are also paid on the way. Say it here, or tell `finish`.
        """
        return None

    def finish(
        self,
        reward: float | Mapping[int, float] = 0.0,
        *,
        stop_reason: StopReason = StopReason.TERMINATED,
        final_observation: str = "",
        failure: str = "",
        is_success: bool | None = None,
    ) -> Trajectory:
        """The run as a trajectory: `reward` is for its end, or by step, beside those of `facts`.

        `is_success` says whether the goal was reached; None asks the method of that name.
        """
        calls = self.model.calls
        last = calls[-1].step if calls else 0
        facts = dict(self.facts)
        for step, earned in (reward if isinstance(reward, Mapping) else {last: reward}).items():
            known = facts.get(step, TurnFacts())
            facts[step] = replace(known, reward=known.reward + earned)
        if is_success is None:
            is_success = self.is_success(sum(known.reward for known in facts.values()))
        said = parse_success(is_success, f"{type(self).__name__}: is_success is")
        return make_trajectory(
            self.task.id,
            self.task.task,
            calls,
            facts,
            is_cut_at_calls=self.is_cut_at_calls,
            stop_reason=stop_reason,
            is_success=said and not stop_reason.is_error,
            final_observation=final_observation,
            failure=failure,
        )

    async def _call(self, method: Callable[..., Any], *args: object) -> Any:
        """Call what the user wrote: a coroutine here, plain code in a thread."""
        if inspect.iscoroutinefunction(method):
            return await method(*args)
        return await asyncio.get_running_loop().run_in_executor(self.task.threads, method, *args)


def read_count(workflow_args: Mapping[str, Any], name: str, default: int) -> int:
    """An argument that is a whole number above 0."""
    given = workflow_args.get(name, default)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"rollout.workflow_args.{name}: {given!r} given; expected a whole number above 0.")
    return given


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
        await self.episode.start_async()
        try:
            while self.episode.stop_reason is None:
                await self.play_turn(notes)
        except ContextOverflow as overflow:
            self.episode.stop(StopReason.CONTEXT_OVERFLOW, str(overflow))

    async def play_turn(self, notes: str = "") -> None:
        """One reply, and its actions in the world."""
        reply = await self.answer(self.show(notes))
        parsed = parse_answer(reply.response_text, self.task.context.answer)
        self.facts[self.model.step] = await self.episode.play_async(parsed, reply.response_text)
        self.model.step += 1

    def show(self, notes: str = "") -> list[Message]:
        """The conversation that the next reply goes on from."""
        return build_messages(self.episode.about, self.episode.history, self.task.context, notes=notes)

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

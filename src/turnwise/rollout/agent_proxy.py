"""Asynchronous rollout scheduler: runs episodes concurrently on one engine, without a per-turn barrier.

Tasks become groups of trajectories; each rollout of a group is a workflow with a `ModelHandle` of its own. A reward
model scores all episodes together at the end, a reward function each episode when it ends. Exceptions of a workflow are
recorded on its trajectory; one that exceeds its time limit is cancelled, at the latest at its next model call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, zip_longest
from types import MappingProxyType
from typing import Any

from turnwise.config.schema import ContextSettings
from turnwise.context.recorder import make_trajectory
from turnwise.errors import ConfigError, ContextOverflow, EngineError, EnvError, WorkflowError
from turnwise.infra.digests import seal_turns
from turnwise.infra.threads import DaemonThreads, gather_or_end
from turnwise.infra.untrusted import find_line, format_error, parse_reward, show, told_by
from turnwise.protocols import ChatTemplate, Engine
from turnwise.rollout.env_manager import EnvStateManager, dynamics_seed
from turnwise.rollout.episode import RolloutLimits
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.scoring import RewardScoring, Shaping, shape_rewards
from turnwise.rollout.workflow import FrozenOpponent, OpponentSampler, Workflow, WorkflowTask
from turnwise.types import Group, Sampling, StopReason, Task, Trajectory, TrajectoryId

log = logging.getLogger(__name__)

_EPISODE: ContextVar[str] = ContextVar("turnwise_episode", default="")
"""The episode that the current task plays; whatever a program starts inherits it."""


def bind_episode(name: str) -> None:
    """From here on tasks that are started in this one are the episode's."""
    _EPISODE.set(name)
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_start)


def _start(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)  # type: ignore[arg-type]
    if _EPISODE.get():
        task.add_done_callback(_hear)
    return task


def _hear(task: asyncio.Task[Any]) -> None:
    """Asking for the exception is what keeps Python from telling it later; whoever awaits the task still gets it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("a task of an episode failed: %s", task.get_name(), exc_info=error)


_MAX_THREADS = 256
"""Programs of plain code that run at the same time; further ones wait for their turn."""
_CLOSE_S = 30.0
"""Longest time that a workflow may take to let go of what it holds."""
_scopes = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """How episodes are played, whatever the tasks are."""

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    """With the episode and the call it chooses the random numbers of each request."""
    workflow_args: Mapping[str, Any] = field(default_factory=dict)
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    seats: int = 1
    """How many siblings meet in one world; they begin, fail and are played again together."""
    rivals: OpponentSampler | None = None
    """Whom they meet there beside each other; None: nobody."""


class AgentProxy:
    """The one scheduler: every workflow (environments, agents, programs) runs through it."""

    def __init__(
        self,
        workflow: Callable[..., Workflow],
        states: EnvStateManager,
        contexts: Mapping[str, ContextSettings],
        engine: Engine,
        template: ChatTemplate,
        *,
        rules: RolloutOptions = RolloutOptions(),  # noqa: B008 - frozen
        judging: RewardScoring | None = None,
        shaping: Shaping | None = None,
    ) -> None:
        """`states` holds the environments; `contexts` say for each tag how the model is talked to."""
        self.states = states
        self.rules = rules
        self._contexts = contexts
        self._workflow = workflow
        self._engine = engine
        self._template = template
        self._judging = judging
        self._shaping = shaping
        self._scope = next(_scopes)
        """Keeps apart what an engine keeps for episodes of one name: a task may be sampled and played greedily."""
        self._threads = DaemonThreads(_MAX_THREADS, "workflow")

    @property
    def env_seconds(self) -> float:
        """Time spent inside environments so far."""
        return self.states.env_seconds

    def close(self) -> None:
        """End the environments that wait for their next episode."""
        self.states.close()

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        rollout: int,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]:
        """Play `group_size` siblings of every task; `rollout` numbers the trajectories and chooses the dice.

        `on_done` hears of each episode as it ends, before any judge does. What is `known` from an attempt that was cut
        short is taken as it is.
        """
        size, limit = self.states.group_size, self.rules.limits.max_concurrent
        gate = nullcontext() if limit is None else asyncio.Semaphore(limit)
        tables = [(task, names) for task in tasks for names in self._seat(rollout, task)]
        met = await self._draw_rivals(tasks, rollout)
        playing = [
            self._play_and_score(task, names, met.get(task.id), gate, on_done)
            for task, names in tables
            # Half a table cannot be played again.
            if not known.keys() >= set(names)
        ]
        ended = {each.id: each for table in await gather_or_end(playing) for each in table}
        all_names = [name for _, names in tables for name in names]
        ended |= {each.id: each for each in await self._score([known[n] for n in all_names if n not in ended])}
        played = [ended[name] for name in all_names]
        if self._judging is not None and not self._judging.scores_singly:
            played = self._judging.apply(played)
        if self._shaping is not None:
            played = shape_rewards(played, self._shaping)
        if self._judging is not None or self._shaping is not None:
            played = [seal_turns(trajectory) for trajectory in played]
        return [
            Group(task=task, trajectories=tuple(played[number * size : (number + 1) * size]))
            for number, task in enumerate(tasks)
        ]

    async def _draw_rivals(self, tasks: Sequence[Task], rollout: int) -> dict[str, FrozenOpponent | None]:
        """By task, before anything is played: a rival that cannot be loaded is no failure of an episode."""
        rivals = self.rules.rivals
        if rivals is None:
            return {}
        drawn = await rivals.draw(tasks, rollout)
        return {task.id: rival for task, rival in zip(tasks, drawn, strict=True)}

    def _seat(self, rollout: int, task: Task) -> list[tuple[TrajectoryId, ...]]:
        """The siblings of a task, by the table that they sit at; most sit alone."""
        size, seats = self.states.group_size, self.rules.seats
        if size % seats:
            raise ConfigError(
                f"group_size: {size} given; {seats} siblings play together, so it must divide by {seats}."
            )
        names = [TrajectoryId(rollout, task.id, sibling) for sibling in range(size)]
        return [tuple(names[first : first + seats]) for first in range(0, size, seats)]

    # --- one episode, or those that meet in one world ------------------------------------------------------------

    async def _play_and_score(
        self,
        task: Task,
        names: Sequence[TrajectoryId],
        rival: FrozenOpponent | None,
        gate: AbstractAsyncContextManager[object],
        on_done: Callable[[Trajectory], None] | None,
    ) -> list[Trajectory]:
        return await self._score(await self._play(task, names, rival, gate, on_done))

    async def _score(self, played: list[Trajectory]) -> list[Trajectory]:
        """With the scores of a judge that needs no other episodes for them: a slow one does not hold up sampling."""
        if self._judging is None or not self._judging.scores_singly:
            return played
        return await self._judging.apply_async(played)

    async def _play(
        self,
        task: Task,
        names: Sequence[TrajectoryId],
        rival: FrozenOpponent | None,
        gate: AbstractAsyncContextManager[object],
        on_done: Callable[[Trajectory], None] | None,
    ) -> list[Trajectory]:
        """Until it works, or has failed as often as it may."""
        async with gate:
            played = await self._attempt(task, names, 0, rival)
            for attempt in range(1, self.rules.limits.max_retries + 1):
                if not any(trajectory.stop_reason.is_error for trajectory in played):
                    break
                played = await self._attempt(task, names, attempt, rival)
        if on_done is not None:
            for trajectory in played:
                on_done(trajectory)
        return played

    async def _attempt(
        self, task: Task, names: Sequence[TrajectoryId], attempt: int, rival: FrozenOpponent | None
    ) -> list[Trajectory]:
        """The boundary: whatever goes wrong in a workflow becomes data."""
        bind_episode(str(names[0]))
        models = [self._open_model(task, name, attempt) for name in names]
        workflows: list[Workflow] = []
        deadline = asyncio.timeout(self.rules.limits.timeout_s)
        try:
            async with deadline:
                for name, model in zip(names, models, strict=True):
                    workflows.append(await self._open_workflow(task, name, attempt, model, rival))
                # From here on rewards are what the workflow says they are.
                played = await _run(workflows)
                return [seal_turns(_checked(one, own)) for one, own in zip(played, workflows, strict=True)]
        except BaseException as error:
            # A user's program may raise whatever it likes; what ends this task, or the run, is not its doing.
            if isinstance(error, KeyboardInterrupt | GeneratorExit) or _is_cancelled(error):
                raise
            reason, failure = self._tell(error, is_late=deadline.expired())
            for model in models:
                model.cancel(failure)
            return [
                self._cut_short(task, name, model, workflow, reason, failure)
                for name, model, workflow in zip_longest(names, models, workflows)
            ]
        finally:
            for model in models:
                model.release()
            for workflow in workflows:
                await self._close(workflow)

    def _open_model(self, task: Task, name: TrajectoryId, attempt: int) -> ModelHandle:
        context = self._contexts[task.tag]
        called = f"{name}~{attempt}" if attempt else str(name)
        return ModelHandle(
            self._engine,
            self._template,
            sampling=replace(self.rules.sampling, max_new_tokens=context.max_response_tokens),
            max_tokens=context.max_tokens,
            seed=self.rules.seed,
            name=called,
            cache_key=f"{self._scope}:{called}",
        )

    async def _open_workflow(
        self, task: Task, name: TrajectoryId, attempt: int, model: ModelHandle, rival: FrozenOpponent | None
    ) -> Workflow:
        given = WorkflowTask(
            id=name,
            task=task,
            workflow_args=self.rules.workflow_args,
            limits=self.states.limits_of(task.tag),
            invalid_penalty=self.states.invalid_penalty,
            context=self._contexts[task.tag],
            dynamics_seed=dynamics_seed(name, attempt),
            make_env=partial(self.states.make_env, task.tag, task.split),
            open_episode=partial(self.states.open, task, name, attempt=attempt),
            threads=self._threads,
            rival=rival,
        )
        build = partial(self._workflow, task=given, model=model)
        if not _is_plain(self._workflow):
            return build()
        return await asyncio.get_running_loop().run_in_executor(self._threads, build)

    async def _close(self, workflow: Workflow) -> None:
        """Nobody waits for plain code: what hangs in a step may hang in `close` as well."""
        if inspect.iscoroutinefunction(workflow.close):
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await workflow.close()
            except Exception:
                # What it earned stays: closing comes after the episode.
                log.warning("%s failed while it was closed", type(workflow).__name__, exc_info=True)
        elif type(workflow).close is not Workflow.close:
            with suppress(RuntimeError):  # the threads are gone where the run itself is ending
                self._threads.submit(workflow.close)

    def _cut_short(
        self,
        task: Task,
        name: TrajectoryId,
        model: ModelHandle,
        workflow: Workflow | None,
        reason: StopReason,
        failure: str,
    ) -> Trajectory:
        """What was sampled and noted until then; without the notes where they are what is broken."""
        if workflow is not None:
            with suppress(Exception):
                return _checked(workflow.finish(stop_reason=reason, failure=failure), workflow)
        return make_trajectory(
            name,
            task,
            model.calls,
            {},
            is_cut_at_calls=True,
            stop_reason=reason,
            # An environment would have said it; what a program would have said, nobody knows.
            is_success=None if getattr(self._workflow, "pays_itself", True) else False,
            failure=failure,
        )

    def _tell(self, error: BaseException, *, is_late: bool) -> tuple[StopReason, str]:
        if is_late:
            limit = self.rules.limits.timeout_s
            return (
                StopReason.TIMEOUT,
                f"the episode took longer than rollout.episode_timeout_s = {limit:g} and was ended.",
            )
        reasons = {
            ContextOverflow: StopReason.CONTEXT_OVERFLOW,
            EngineError: StopReason.ENGINE_ERROR,
            EnvError: StopReason.ENV_ERROR,
        }
        for kind, reason in reasons.items():
            if isinstance(error, kind):
                return reason, told_by(error)
        return StopReason.WORKFLOW_ERROR, _describe(error)


async def _run(workflows: Sequence[Workflow]) -> Sequence[Trajectory]:
    """Alone, or all of one table together."""
    first = workflows[0]
    return await type(first).play_together(workflows) if workflows[1:] else [await first.run()]


def _is_plain(workflow: object) -> bool:
    """Whether a workflow is written without coroutines, so that what it does may block, its making included."""
    step = getattr(workflow, "step", None)
    return step is not None and not inspect.iscoroutinefunction(step)


def _checked(played: object, workflow: Workflow) -> Trajectory:
    """What a workflow returned, if it can be learnt from."""
    name = type(workflow).__name__
    if not isinstance(played, Trajectory):
        raise WorkflowError(f"{name}.run returned {show(played)}; expected what self.finish(reward) returns.")
    for turn in played.turns:
        parse_reward(turn.reward, f"{name}: the reward of turn {turn.index} is")
    return played


def _is_cancelled(error: BaseException) -> bool:
    """Whether it is this very task that is to end; a program can raise the same."""
    current = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and current is not None and current.cancelling() > 0


def _describe(error: BaseException) -> str:
    """What was raised, and the innermost line of the user's that led to it; the library's only where there is none."""
    place = find_line(error)
    told = "" if place is None else f" ({place.file}:{place.line}, in {place.function})"
    return f"{format_error(error)}{told}"

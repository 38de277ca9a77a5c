"""One environment in one episode: played turn by turn, with its history, its budget, and how it ended.

In: the actions of a reply. Out: what the turn was worth, and the next state. Whatever goes wrong in the environment is
data here. It knows nothing of models and tokens. Everything that plays an environment turn by turn goes through it, so
that a turn means the same however an episode is recorded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from turnwise.context.answer import ParsedAnswer
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import call_env, close_env, describe_env, reset_env, step_env
from turnwise.errors import EnvError, RewardError, TaskError
from turnwise.infra.threads import call_with_timeout
from turnwise.infra.wait_tracking import waiting
from turnwise.rollout_io import EnvDescription, HistoryEntry
from turnwise.types import StepResult, StopReason, Task

log = logging.getLogger(__name__)
_CLOSE_S = 5.0
"""Longest wait for a slow environment to close."""


class EnvPool:
    """Making an environment may take long, so that one is used for many episodes."""

    def __init__(self, make_env: Callable[[], BaseEnv], threads: Executor) -> None:
        self.threads = threads
        """Where slow environments are waited for."""
        self.seconds = 0.0
        """Time spent inside environments so far."""
        self._make_env = make_env
        self._spare: list[BaseEnv] = []

    def take(self) -> BaseEnv:
        return self._spare.pop() if self._spare else self._make_env()

    def give_back(self, env: BaseEnv, *, is_sound: bool) -> None:
        """For a later episode; an environment that is not sound is closed and never used again."""
        if is_sound:
            self._spare.append(env)
        else:
            # Closing may take as long as the call that hangs.
            self.threads.submit(close_env, env)

    @contextmanager
    def timed(self, env: BaseEnv) -> Iterator[None]:
        """Charge the time to environments; while a slow one is waited for, others play, so its wait is nobody's."""
        started = time.perf_counter()
        yield
        if not env.is_slow:
            self.seconds += time.perf_counter() - started

    def close(self) -> None:
        for env in self._spare:
            try:
                call_with_timeout(_CLOSE_S if env.is_slow else None, partial(close_env, env))
            except TimeoutError:
                log.warning("%s.close() takes longer than %g s and is left behind", type(env).__name__, _CLOSE_S)
        self._spare = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_turns: int
    max_actions: int | None = None
    max_actions_per_turn: int = 1

    def shortened(self, max_turns: int) -> Limits:
        """The same with at most so many turns."""
        return replace(self, max_turns=min(self.max_turns, max_turns))

    def actions_left(self, num_actions: int, num_turns: int) -> int:
        """How many actions the rest of the episode can hold."""
        by_turns = (self.max_turns - num_turns) * self.max_actions_per_turn
        return by_turns if self.max_actions is None else min(by_turns, self.max_actions - num_actions)

    def find_stop(self, last: StepResult | None, *, num_actions: int, num_turns: int) -> StopReason | None:
        """Why the episode is over after a turn, or None where it goes on; `last` is None if no action was played."""
        if last is not None and last.terminated:
            return StopReason.TERMINATED
        if last is not None and last.truncated:
            return StopReason.ENV_TRUNCATED
        if self.max_actions is not None and num_actions >= self.max_actions:
            return StopReason.MAX_ACTIONS
        if num_turns >= self.max_turns:
            return StopReason.MAX_TURNS
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What bounds the episodes of a rollout from outside."""

    max_concurrent: int | None = None
    """Episodes that run at the same time."""
    timeout_s: float | None = None
    """Longest episode, counted from its own start."""
    max_retries: int = 0
    """How often an episode that failed is played again, in a fresh environment."""


T = TypeVar("T")


class EnvEpisode:
    """`start`, then `play` until `stop_reason` is set, then `close`."""

    def __init__(
        self, pool: EnvPool, task: Task, *, limits: Limits, invalid_penalty: float, dynamics_seed: int
    ) -> None:
        """`dynamics_seed` chooses the chances taken while playing; siblings have different ones."""
        self._pool = pool
        self._limits = limits
        self._invalid_penalty = invalid_penalty
        self._dynamics_seed = dynamics_seed
        self._is_busy = False
        """Whether a call is running in the environment; one that nobody waits for any more may run for ever."""
        self.env = pool.take()
        self.task = task
        self.about = EnvDescription()
        self.history: list[HistoryEntry] = []
        self.num_actions = 0
        self.is_success = False
        self.stop_reason: StopReason | None = None
        """Why the episode is over; None while it goes on."""
        self.failure = ""

    def start(self) -> None:
        """Begin the task from the start; what was played before is forgotten."""
        self.history, self.num_actions = [], 0
        self.is_success, self.stop_reason, self.failure = False, None, ""
        state = self._call(self._reset) or ""
        self.history.append(HistoryEntry(state=state, actions_left=self._actions_left()))

    async def start_async(self) -> None:
        """The same, without holding up others where the environment is slow."""
        await self._aside(self.start)

    def play(self, answer: ParsedAnswer, reply: str = "") -> HistoryEntry:
        """One turn: the actions of a reply, in order; says what it was worth."""
        before = self.history[-1]
        results = self._call(lambda: list(self._step_all(answer.actions))) or []
        last = results[-1] if results else None
        is_valid = answer.is_well_formed and all(result.is_valid for result in results)
        played = HistoryEntry(
            state=before.state,
            actions_left=before.actions_left,
            actions=answer.actions[: len(results)],
            reward=sum(result.reward for result in results),
            penalty=0.0 if is_valid else self._invalid_penalty,
            # A turn without an action did nothing.
            is_valid=is_valid and last is not None,
            is_effective=last is not None and last.is_effective,
            metrics=last.metrics if last is not None else {},
            info=last.info if last is not None else {},
            llm_response=reply,
        )
        self.history[-1] = played
        if self.stop_reason is None:
            num_turns = len(self.history)
            self.stop_reason = self._limits.find_stop(last, num_actions=self.num_actions, num_turns=num_turns)
            self.is_success = last is not None and bool(last.is_success)
        state = last.text if last is not None else before.state
        self.history.append(HistoryEntry(state=state, actions_left=self._actions_left()))
        return played

    async def play_async(self, answer: ParsedAnswer, reply: str = "") -> HistoryEntry:
        """The same, without holding up others where the environment is slow."""
        return await self._aside(lambda: self.play(answer, reply))

    async def ask(self, method: str, *args: object) -> object:
        """Any other method of the environment; EnvError where it failed, and then it is never used again."""
        answer = await self._aside(lambda: self._call(lambda: call_env(self.env, method, *args)))
        if self.stop_reason is StopReason.ENV_ERROR:
            raise EnvError(self.failure)
        return answer

    def stop(self, reason: StopReason, failure: str = "") -> None:
        """End it from outside: a token budget, or an engine that failed."""
        self.stop_reason, self.failure = reason, failure

    def oracle(self) -> str:
        """What the environment's oracle would do now; EnvError where there is none."""
        return str(call_env(self.env, "oracle"))

    def close(self) -> None:
        """The environment waits for its next episode; one that failed, or is still busy, is never used again."""
        is_sound = not self._is_busy and self.stop_reason is not StopReason.ENV_ERROR
        self._pool.give_back(self.env, is_sound=is_sound)

    def _reset(self) -> str:
        task = self.task
        state = reset_env(self.env, seed=task.seed, split=task.split, dynamics_seed=self._dynamics_seed)
        self.about = describe_env(self.env)
        return state

    def _step_all(self, actions: Sequence[str]) -> Iterator[StepResult]:
        """The world's answers one by one, until the actions, the budget or the episode end."""
        budget = self._limits.max_actions
        left = None if budget is None else budget - self.num_actions
        for action in actions[:left]:
            result = step_env(self.env, action)
            self.num_actions += 1
            yield result
            if result.done:
                break

    def _actions_left(self) -> int:
        return self._limits.actions_left(self.num_actions, len(self.history))

    def _call(self, call: Callable[[], T]) -> T | None:
        """Whatever the environment does in a call; None where it failed, and why is on the episode."""
        with self._pool.timed(self.env):
            self._is_busy = True
            try:
                return call()
            except (EnvError, RewardError, TaskError) as error:
                self.stop_reason, self.failure = StopReason.ENV_ERROR, str(error)
                return None
            finally:
                self._is_busy = False

    async def _aside(self, call: Callable[[], T]) -> T:
        if self.env.is_slow:
            # How long it may take is the business of the episode, or of whoever keeps the environment elsewhere.
            with waiting(f"episode of {self.task.id}", f"its environment, {self.env.label()}", None):
                return await asyncio.get_running_loop().run_in_executor(self._pool.threads, call)
        return call()

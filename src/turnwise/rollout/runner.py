"""Runs many episodes at once: how many at a time, how long each, and how often one that failed is played again.

In: plays. Out: their trajectories, in the same order. An episode that fails or takes too long is data; its siblings go
on. It refuses to know what an episode is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from turnwise.types import StopReason, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """What bounds the episodes of a rollout from outside."""

    max_concurrent: int | None = None
    """Episodes that run at the same time."""
    timeout_s: float | None = None
    """Longest episode, counted from its own start."""
    max_retries: int = 0
    """How often an episode that failed is played again, in a fresh environment."""


class Play(Protocol):
    """One episode to be played."""

    async def run(self, attempt: int) -> Trajectory:
        """Play it from the start; attempts above 0 come after one that failed."""
        ...

    def give_up(self, reason: StopReason, failure: str) -> Trajectory:
        """What there is of an attempt that was cancelled."""
        ...


class Front(Protocol):
    """What turns tasks into plays: environments that a manager holds, or programs that own theirs."""

    group_size: int

    @property
    def env_seconds(self) -> float:
        """Time spent inside environments so far."""
        ...

    def begin(self, tasks: Sequence[Task], *, rollout: int, round_number: int) -> list[Play]:
        """The siblings of each task, one task after another."""
        ...


async def run_plays(
    plays: Sequence[Play], limits: RunnerLimits, on_done: Callable[[Trajectory], None] | None = None
) -> list[Trajectory]:
    """Play all; `on_done` hears of each as it ends."""
    gate: AbstractAsyncContextManager[object] = (
        nullcontext() if limits.max_concurrent is None else asyncio.Semaphore(limits.max_concurrent)
    )

    async def run(play: Play) -> Trajectory:
        async with gate:
            trajectory = await _run_until_it_works(play, limits)
        if on_done is not None:
            on_done(trajectory)
        return trajectory

    running = [asyncio.ensure_future(run(play)) for play in plays]
    try:
        return list(await asyncio.gather(*running))
    finally:
        # Where one breaks, its siblings must not go on behind the caller's back.
        for unfinished in running:
            unfinished.cancel()


async def _run_until_it_works(play: Play, limits: RunnerLimits) -> Trajectory:
    trajectory = await _run_once(play, 0, limits.timeout_s)
    for attempt in range(1, limits.max_retries + 1):
        if not trajectory.stop_reason.is_error:
            break
        trajectory = await _run_once(play, attempt, limits.timeout_s)
    return trajectory


async def _run_once(play: Play, attempt: int, timeout_s: float | None) -> Trajectory:
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await play.run(attempt)
    except TimeoutError:
        if not deadline.expired():
            raise
        why = f"the episode took longer than rollout.episode_timeout_s = {timeout_s:g} and was ended."
        return play.give_up(StopReason.TIMEOUT, why)

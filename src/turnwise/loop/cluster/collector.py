"""What the loops hold in place of a proxy and an engine of their own process: the same contracts, over a crew.

`collect` deals the tasks of a rollout out among the explorers that are there. What one of them loses is handed to
another, and episodes that had ended before are not played again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from types import MappingProxyType
from typing import NoReturn

from turnwise.errors import EngineError, LostError
from turnwise.infra.threads import end_tasks
from turnwise.loop.cluster.crew import Crew
from turnwise.loop.cluster.shares import Kind, Player, Share, deal
from turnwise.protocols import Weights
from turnwise.report.trajectories import Journals
from turnwise.types import FloatArray, GenerateRequest, Group, IntArray, Task, Trajectory, TrajectoryId

_share_numbers = count()


class CrewCollector:
    """A `Collector` that plays elsewhere. Waits for: the last share, each with a deadline since its last news."""

    def __init__(self, crew: Crew, kind: Kind, *, silence_s: float, journals: Journals | None = None) -> None:
        """`silence_s` without news of a share, its explorer counts as lost. With `journals`, episodes are kept."""
        self.env_seconds = 0.0
        self._crew = crew
        self._kind: Kind = kind
        self._silence_s = silence_s
        self._journals = journals

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        rollout: int,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]:
        ended, groups = dict(known), dict[str, Group]()
        if self._journals is not None:
            self._journals.forget_covered()
            ended |= self._journals.read(rollout)

        def hear(trajectory: Trajectory) -> None:
            if trajectory.id in ended:
                return
            ended[trajectory.id] = trajectory
            if self._journals is not None:
                self._journals.append(trajectory)
            if on_done is not None:
                on_done(trajectory)

        waiting, running = list(tasks), dict[asyncio.Task[list[Group]], Share]()
        try:
            while waiting or running:
                if waiting:
                    running |= await self._hand_out(waiting, rollout, ended, hear)
                    waiting = []
                over, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for playing in over:
                    share = running.pop(playing)
                    try:
                        groups |= {group.task.id: group for group in playing.result()}
                    except LostError:
                        waiting += share.tasks
        finally:
            await end_tasks(running)
        return [groups[task.id] for task in tasks]

    async def _hand_out(
        self,
        tasks: Sequence[Task],
        rollout: int,
        ended: Mapping[TrajectoryId, Trajectory],
        hear: Callable[[Trajectory], None],
    ) -> dict[asyncio.Task[list[Group]], Share]:
        players = await self._crew.players()
        dealt = deal(tasks, len(players))
        handed: dict[asyncio.Task[list[Group]], Share] = {}
        for player, some in zip(players, dealt, strict=False):
            ids = {task.id for task in some}
            share = Share(
                number=next(_share_numbers),
                kind=self._kind,
                rollout=rollout,
                tasks=some,
                known={name: played for name, played in ended.items() if name.task_id in ids},
            )
            self._crew.begin(player)
            handed[asyncio.create_task(self._play(player, share, hear, len(dealt)))] = share
        return handed

    async def _play(
        self, player: Player, share: Share, hear: Callable[[Trajectory], None], num_shares: int
    ) -> list[Group]:
        try:
            async with aclosing(player.play(share)) as news:
                while True:
                    async with asyncio.timeout(self._silence_s):
                        told = await anext(news)
                    # They play at the same time, so what they wait for does not add up.
                    self.env_seconds += told.env_seconds / num_shares
                    for trajectory in told.episodes:
                        hear(trajectory)
                    if told.groups is not None:
                        return list(told.groups)
        except TimeoutError:
            lost = LostError(f"no news of rollout {share.rollout} for {self._silence_s:g} s (sync.timeout_s)")
            self._crew.lose(player, str(lost))
            raise lost from None
        except LostError as lost:
            self._crew.lose(player, str(lost))
            raise
        finally:
            self._crew.end(player)


class CrewEngine:
    """An `Engine` for the weights alone: whoever plays has one of its own beside it."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    @property
    def policy_version(self) -> int:
        return self._crew.policy_version

    async def generate(self, request: GenerateRequest) -> NoReturn:
        raise EngineError("cluster.type: 'ray' given; engines answer where the explorers are, not in this process.")

    def release(self, cache_key: str) -> None:
        return

    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        await self._crew.publish(weights, policy_version)

    def state(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """The crew outlives a run that goes back to a checkpoint."""


class ScoringCrewEngine(CrewEngine):
    """The same where the explorers' engines hold weights somewhere else, and can be asked about a text."""

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        return await self._crew.score(token_ids)

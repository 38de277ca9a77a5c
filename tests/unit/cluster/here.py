"""A cluster in this process: the hosts themselves, without anything in between, and each can be lost on demand."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.cluster.buffer_worker import BufferWorker
from turnwise.cluster.explorer_pool import RemoteLearner, Share, Told, pack_weights
from turnwise.cluster.workers import ExplorerWorker, LearnerHost
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import WorkerLostError
from turnwise.protocols import Weights
from turnwise.types import FloatArray, IntArray

_loading = threading.Lock()
"""On a real cluster every part has a process of its own; in one process, models cannot be loaded side by side."""


@dataclass
class Kept:
    """A result that is here."""

    value: Any

    def get(self) -> Any:
        return self.value


class HereHost:
    """Calls an object; from the `lost_at`-th call of a method on, it is gone."""

    def __init__(self, opened: object, lost_at: tuple[str, int] | None = None) -> None:
        self.opened = opened
        self._lost_at = lost_at
        self._num_calls: dict[str, int] = {}
        self._is_lost = False

    def _count(self, method: str) -> None:
        self._num_calls[method] = self._num_calls.get(method, 0) + 1
        if self._lost_at is not None and self._lost_at[0] == method and self._num_calls[method] >= self._lost_at[1]:
            self._is_lost = True
        if self._is_lost:
            raise WorkerLostError("the learner is gone")

    def call(self, method: str, *args: object) -> Any:
        self._count(method)
        return getattr(self.opened, method)(*args)

    def stream(self, method: str, *args: object) -> Iterator[Any]:
        yield from self.call(method, *args)

    def refer(self, method: str, *args: object) -> Kept:
        return Kept(self.call(method, *args))


class HerePlayer:
    """An explorer in this process; it is lost after it has told of `lost_after` episodes."""

    def __init__(self, name: str, host: ExplorerWorker, lost_after: int | None = None) -> None:
        self.name = name
        self.host = host
        self.lost_after = lost_after
        self.shares: list[Share] = []
        self.num_told = 0
        self.has_left = False

    async def play(self, share: Share) -> AsyncGenerator[Told, None]:
        self.shares.append(share)
        async for told in self.host.play(share):
            if self.lost_after is not None and self.num_told >= self.lost_after:
                await self.host.stop(share.number)
                raise WorkerLostError(f"{self.name} is gone")
            self.num_told += len(told.episodes)
            yield told

    async def load(self, weights: Weights, policy_version: int) -> None:
        await self.host.load(pack_weights(weights), policy_version)

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        return await self.host.score(token_ids)

    async def leave(self) -> None:
        self.has_left = True


@dataclass
class HereCluster:
    """Every part that was opened, in order."""

    settings: TurnwiseSettings
    run_path: Path
    lose_learner_at: list[tuple[str, int] | None] = field(default_factory=list)
    """One entry for each learner that is opened."""
    lose_players_after: list[int | None] = field(default_factory=list)
    learners: list[HereHost] = field(default_factory=list)
    players: list[HerePlayer] = field(default_factory=list)
    is_closed: bool = False

    def open_learner(self, model_path: str) -> RemoteLearner:
        lost_at = self.lose_learner_at.pop(0) if self.lose_learner_at else None
        with _loading:
            self.learners.append(HereHost(LearnerHost(self.settings, model_path), lost_at))
        return RemoteLearner(self.learners[-1])

    def open_buffer(self) -> HereHost:
        return HereHost(BufferWorker(self.settings, self.run_path, is_replacement=False))

    async def hire(self, name: str, model_path: str) -> HerePlayer:
        lost_after = self.lose_players_after.pop(0) if self.lose_players_after else None
        with _loading:
            self.players.append(HerePlayer(name, ExplorerWorker(self.settings, model_path), lost_after))
        return self.players[-1]

    def describe_room(self) -> str:
        return "There is room."

    def close(self) -> None:
        self.is_closed = True


def opens(made: list[HereCluster], **given: Any) -> Callable[[TurnwiseSettings, Path], HereCluster]:
    """For `ClusterTraining`; what it opens is appended to `made`."""

    def open_cluster(settings: TurnwiseSettings, run_path: Path) -> HereCluster:
        made.append(HereCluster(settings, run_path, **given))
        return made[-1]

    return open_cluster

"""Weights handed over inside one process: into the engines, in place, or left for an explorer to fetch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import nn

from turnwise.config.schema import SyncSettings
from turnwise.deps import TransportSite
from turnwise.protocols import Engine, PolicyMark, Weights


class MemoryChannel:
    """Publishes to engines of this process; the version is live when `publish` returns."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    async def publish(self, weights: Weights, policy_version: int) -> int:
        for engine in self._engines:
            await engine.update_weights(weights, policy_version)
        return policy_version


class SharedChannel:
    """Tells an engine that samples from the learner's own model that its weights have changed; nothing is copied."""

    def __init__(self, engine: Engine, model: nn.Module) -> None:
        self._engine = engine
        self._model = model

    async def publish(self, weights: Weights, policy_version: int) -> int:
        """`weights` are those of the model already, perhaps with its adapters merged: they stay unread."""
        await self._engine.update_weights(self._model.state_dict(), policy_version)
        return policy_version


class MemoryMailbox:
    """`sync.method: memory`: the newest published weights, and the newest request for newer ones."""

    is_shared: ClassVar[bool] = False

    @classmethod
    def open(cls, settings: SyncSettings, site: TransportSite) -> MemoryMailbox:
        return cls(site.ring)

    def __init__(self, ring: Callable[[], None]) -> None:
        """`ring` wakes whoever waits."""
        self._ring = ring
        self._mark: PolicyMark | None = None
        self._weights: Weights = {}
        self._requested: int | None = None

    def post(self, mark: PolicyMark, weights: Weights) -> None:
        # A copy: the learner goes on changing its own before the explorer has fetched these.
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self._mark = mark
        self._ring()

    def newest(self) -> PolicyMark | None:
        return self._mark

    def fetch(self) -> tuple[PolicyMark, Weights]:
        assert self._mark is not None, "nothing has been posted"
        return self._mark, self._weights

    def request(self, step: int) -> None:
        self._requested = step
        self._ring()

    def requested(self) -> int | None:
        return self._requested

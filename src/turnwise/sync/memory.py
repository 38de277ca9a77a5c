"""Weights handed over inside one process: straight into the engines, or left for an explorer to fetch."""

from __future__ import annotations

from turnwise.protocols import PolicyMark, WeightReceiver, Weights
from turnwise.sync.waiting import Bell


class MemoryChannel:
    """Publishes to engines of this process; the version is live when `publish` returns."""

    def __init__(self, receivers: list[WeightReceiver]) -> None:
        self._receivers = receivers

    async def publish(self, weights: Weights, policy_version: int) -> int:
        for receiver in self._receivers:
            await receiver.update_weights(weights, policy_version)
        return policy_version


class MemoryMailbox:
    """The newest published weights, and the newest request for newer ones; who waits is woken."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._mark: PolicyMark | None = None
        self._weights: Weights = {}
        self._requested: int | None = None

    def post(self, mark: PolicyMark, weights: Weights) -> None:
        # A copy: the learner goes on changing its own before the explorer has fetched these.
        self._weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self._mark = mark
        self._bell.ring()

    def newest(self) -> PolicyMark | None:
        return self._mark

    def fetch(self) -> tuple[PolicyMark, Weights]:
        assert self._mark is not None, "nothing has been posted"
        return self._mark, self._weights

    def request(self, step: int) -> None:
        self._requested = step
        self._bell.ring()

    def requested(self) -> int | None:
        return self._requested

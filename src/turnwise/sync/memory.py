"""Weights handed over inside one process: the engine copies them before the next request."""

from __future__ import annotations

from turnwise.protocols import WeightReceiver, Weights


class MemoryChannel:
    """Publishes to engines of this process; the version is live when `publish` returns."""

    def __init__(self, receivers: list[WeightReceiver]) -> None:
        self._receivers = receivers

    async def publish(self, weights: Weights, policy_version: int) -> int:
        for receiver in self._receivers:
            receiver.load_weights(weights, policy_version)
        return policy_version

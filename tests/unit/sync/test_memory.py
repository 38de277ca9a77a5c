"""Weights handed over inside one process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
import torch

from turnwise.errors import SyncError
from turnwise.sync.weight_store import EnginePublisher


class Receiver:
    def __init__(self) -> None:
        self.received: list[tuple[Mapping[str, torch.Tensor], int]] = []

    async def update_weights(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
        self.received.append((weights, policy_version))


def test_every_receiver_has_the_version_when_publish_returns() -> None:
    receivers = [Receiver(), Receiver()]
    channel, weights = EnginePublisher(list(receivers)), {"w": torch.ones(2)}
    assert asyncio.run(channel.publish(weights, 7)) == 7
    for receiver in receivers:
        ((received, version),) = receiver.received
        assert received is weights
        assert version == 7


def test_a_receiver_that_refuses_stops_the_publication() -> None:
    class Busy(Receiver):
        async def update_weights(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
            raise SyncError("busy")

    with pytest.raises(SyncError, match="busy"):
        asyncio.run(EnginePublisher([Busy()]).publish({}, 1))

"""The hosts as Ray actors.

A constructor does nothing that can fail: what `open` raises reaches the caller as it is, which a failing constructor
would not let it. The buffer is the exception: Ray itself starts it again, with its constructor alone.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

from transformers.utils import logging as transformers_logging

from turnwise.config.settings import require_package
from turnwise.learn.parallel_context import rank_devices
from turnwise.learn.workers import Rank, RankPlace
from turnwise.loop.cluster.actor_site import ActorSite, begin
from turnwise.loop.cluster.hosts import ExplorerHost, LearnerHost, RankHost

# Their logs are read by people: no bars of other packages.
transformers_logging.disable_progress_bar()


class LearnerActor(LearnerHost):
    """`LearnerHost` as an actor."""

    def __init__(self, site: ActorSite) -> None:
        self._site = site

    def open(self) -> None:
        super().__init__(begin(self._site), self._site.model_path)


class RankActor(RankHost):
    """`RankHost` as an actor."""

    def __init__(self, site: ActorSite) -> None:
        self._site = site

    def meeting_point(self) -> str:
        """Where the others find this one: an address of its machine, and a port that is free there."""
        network: Any = require_package("ray.util", extra="ray", asked_by="cluster.type: 'ray'")
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{network.get_node_ip_address()}:{free.getsockname()[1]}"

    def open(self, place: RankPlace) -> None:
        """Return when all ranks have met. Ray shows each the GPUs that are its own, so it computes on the first."""
        begin(self._site)
        super().__init__(Rank(replace(place, device=rank_devices(place.device, 1)[0])))


class ExplorerActor(ExplorerHost):
    """`ExplorerHost` as an actor."""

    def __init__(self, site: ActorSite) -> None:
        self._site = site

    async def open(self) -> None:
        own = self._site.run_path / "explorers" / self._site.name
        super().__init__(begin(self._site), self._site.model_path, own)

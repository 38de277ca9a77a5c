"""The hosts as Ray actors.

A constructor does nothing that can fail: what `open` raises reaches the caller as it is, which a failing constructor
would not let it. The buffer is the exception: Ray itself starts it again, with its constructor alone.
"""

from __future__ import annotations

from transformers.utils import logging as transformers_logging

from turnwise.loop.cluster.actor_site import ActorSite, begin
from turnwise.loop.cluster.hosts import ExplorerHost, LearnerHost

# Their logs are read by people: no bars of other packages.
transformers_logging.disable_progress_bar()


class LearnerActor(LearnerHost):
    """`LearnerHost` as an actor."""

    def __init__(self, site: ActorSite) -> None:
        self._site = site

    def open(self) -> None:
        super().__init__(begin(self._site), self._site.model_path)


class ExplorerActor(ExplorerHost):
    """`ExplorerHost` as an actor."""

    def __init__(self, site: ActorSite) -> None:
        self._site = site

    async def open(self) -> None:
        own = self._site.run_path / "explorers" / self._site.name
        super().__init__(begin(self._site), self._site.model_path, own)

"""The buffer of a run in a process of its own, as a Ray actor or anything else. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.config.schema import TurnwiseSettings
from turnwise.config.settings import require_package
from turnwise.experience.codec import decode_experiences, encode_experiences
from turnwise.loop.cluster.actor_site import ActorSite, begin
from turnwise.loop.open_buffer import open_buffer


class BufferHost:
    """A durable buffer, in a process of its own. One that takes the place of a lost one may be asked a thing twice."""

    def __init__(self, settings: TurnwiseSettings, run_path: Path, *, is_replacement: bool) -> None:
        self._buffer = open_buffer(settings, run_path)
        self._may_have_taken = is_replacement
        """Whether the one before may have been lost between taking a batch and handing it over."""

    def add(self, blocks: Sequence[bytes]) -> None:
        self._buffer.add(decode_experiences(blocks))

    def take(self, step: int) -> list[bytes]:
        if self._may_have_taken:
            self._buffer.rewind(step - 1, plays_again=False)
            self._may_have_taken = False
        return encode_experiences(self._buffer.take(step))

    def is_ready(self, step: int) -> bool:
        return self._buffer.is_ready(step)

    def has_group(self, group_id: str) -> bool:
        return self._buffer.has_group(group_id)

    def num_dropped(self) -> int:
        return self._buffer.num_dropped

    def count(self) -> int:
        return len(self._buffer)

    def rewind(self, step: int, plays_again: bool) -> None:
        self._buffer.rewind(step, plays_again=plays_again)


class BufferActor(BufferHost):
    """`BufferHost` as an actor that Ray starts again by itself."""

    def __init__(self, site: ActorSite) -> None:
        ray: Any = require_package("ray", extra="ray", asked_by="cluster.type: 'ray'")
        is_replacement = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        super().__init__(begin(site), site.run_path, is_replacement=is_replacement)

    def open(self) -> None:
        """Answers once it is open."""

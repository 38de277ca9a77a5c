"""The buffer between exploring and learning: whole groups in, whole groups out, newest first.

`train_batch_size` is a ceiling on what is taken; the rest stays for the next update.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.types import Experience


class MemoryBuffer:
    """Groups in memory; the newest policy's are taken first, in the order in which they came."""

    def __init__(self) -> None:
        self._groups: dict[str, list[Experience]] = {}

    def add(self, experiences: Sequence[Experience]) -> None:
        for experience in experiences:
            self._groups.setdefault(experience.id.trajectory.group, []).append(experience)

    def take(self, max_experiences: int | None) -> list[Experience]:
        """Whole groups, at most `max_experiences` in all, but at least one group where there is any."""
        newest_first = sorted(self._groups, key=lambda name: -self._groups[name][0].policy_version)
        taken: list[Experience] = []
        for name in newest_first:
            group = self._groups[name]
            if taken and max_experiences is not None and len(taken) + len(group) > max_experiences:
                continue
            taken += self._groups.pop(name)
        return taken

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups.values())

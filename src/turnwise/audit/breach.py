"""One thing that is not as it should be, and the words for it.

It refuses to know how a breach is found, and what is done about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.types import Experience

_MAX_TOLD = 5
"""Breaches that a message spells out; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """What was expected, what was found, where, and who wrote it.

    Example: `Breach(check="digest", where="3/frozen_lake/train/7/0#0", turn=2, token=41, group="3/frozen_lake/train/7",
    expected="digest 9ae0daaf", found="digest 31c6eaf2", wrote="engine local, request 91, version 2")`.
    """

    check: str
    """Which check found it."""
    where: str
    """The experience, or what else is meant."""
    expected: str
    found: str
    turn: int | None = None
    token: int | None = None
    """Its place in the experience, from 0; where a turn as a whole is meant, its first."""
    wrote: str = ""
    """Who wrote what was found."""
    group: str | None = None
    """The group that can be left out; None where nothing is sound without it."""

    def describe(self) -> str:
        place = [self.where]
        place += [f"turn {self.turn}"] if self.turn is not None else []
        place += [f"token {self.token}"] if self.token is not None else []
        by = f"; written by {self.wrote}" if self.wrote else ""
        return f"{self.check}: {', '.join(place)}: expected {self.expected}, found {self.found}{by}"


def of_experience(check: str, experience: Experience, expected: str, found: str, turn: int | None = None) -> Breach:
    """One whose group can be left out; `turn` counts the turns of the experience."""
    number = None if turn is None else int(experience.turn_indices[turn])
    sampled = experience.segment.turn_ids == number if number is not None else None
    return Breach(
        check=check,
        where=str(experience.id),
        expected=expected,
        found=found,
        turn=number,
        token=int(sampled.argmax()) if sampled is not None and sampled.any() else None,
        wrote=who_wrote(experience, turn or 0),
        group=experience.id.trajectory.group,
    )


def who_wrote(experience: Experience, turn: int) -> str:
    """The engine, request and version of one of its turns."""
    known = experience.provenance
    if known is None or turn >= len(known.engines):
        return f"version {experience.policy_version}, by an engine that does not say which"
    return f"engine {known.engines[turn]}, request {known.requests[turn]}, version {known.policy_versions[turn]}"


def describe_all(breaches: Sequence[Breach]) -> str:
    """One line for each of the first, and how many there are."""
    lines = [f"  {breach.describe()}" for breach in breaches[:_MAX_TOLD]]
    rest = len(breaches) - len(lines)
    return "\n".join([*lines, f"  and {rest} more"] if rest > 0 else lines)

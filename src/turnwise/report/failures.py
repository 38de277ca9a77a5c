"""Failed episodes come in; how many there were of each cause goes out, in words that can be counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from turnwise.types import Group

_ARGUMENTS = re.compile(r"^([\w.]+)\(.*?\)(?= failed: )", re.DOTALL)
"""Of the call that failed, at the start of a failure; brackets further on belong to what it says."""
_MAX_CAUSES = 20
"""Causes that differ in every episode must not fill a summary."""
_MAX_LENGTH = 200
OTHER = "other causes"


def count_failures(groups: Sequence[Group], before: Mapping[str, int]) -> dict[str, int]:
    """`before` and the failures of these groups, by cause."""
    counts = Counter(before)
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.stop_reason.is_error:
                cause = cause_of(trajectory.failure)
                counts[cause if cause in counts or len(counts) < _MAX_CAUSES else OTHER] += 1
    return dict(counts)


def cause_of(failure: str) -> str:
    """The first line of a failure without the arguments of the call, which differ from episode to episode."""
    first_line = _ARGUMENTS.sub(r"\1", failure).strip().split("\n")[0]
    return first_line[:_MAX_LENGTH] or "no reason given"

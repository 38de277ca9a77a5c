"""A share of episodes and their number come in; where the true share may lie goes out.

Wilson's interval at 95 %: it stays inside 0 to 1, and says something where no or every episode succeeded. It is about
which episodes were drawn, and not about which seed a run was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.infra.untrusted import UNKNOWN

_Z = 1.959964
"""Of the normal distribution: 95 % lie within this many standard deviations."""


def share_interval(share: float, episodes: int) -> tuple[float, float]:
    """Low and high end; everything is possible where nothing was played."""
    if episodes < 1:
        return 0.0, 1.0
    weight = _Z**2 / episodes
    middle = share + weight / 2
    spread = _Z * math.sqrt(share * (1 - share) / episodes + weight / (4 * episodes))
    low, high = (middle - spread) / (1 + weight), (middle + spread) / (1 + weight)
    # Rounding may leave a share of 0 or 1 outside of its own interval by one part in 1e16.
    return min(max(low, 0.0), share), max(min(high, 1.0), share)


def recorded_interval(row: Mapping[str, Any], tasks: int) -> tuple[float, float] | None:
    """Of an evaluation that only a row of the metrics tells of; None where it has no success."""
    success = row.get("eval/success")
    if success is None:
        return None
    return share_interval(success, round(tasks * (1 - row.get("eval/success_unknown", 0.0))))


def list_ends(ends: tuple[float, float] | None) -> list[float] | None:
    """As JSON has them; none where there is no share."""
    return None if ends is None else list(ends)


def show_share(share: float | None, ends: Sequence[float] | None) -> str:
    """`0.58 (0.48 to 0.67)`, without what is in brackets where the interval is not known; or that nobody knows."""
    if share is None:
        return UNKNOWN
    return f"{share:.2f}" if ends is None else f"{share:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"

"""A share of episodes and their number come in; where the true share may lie goes out.

Wilson's interval at 95 %: it stays inside 0 to 1, and says something where no or every episode succeeded. It is about
which episodes were drawn, and not about which seed a run was trained with.
"""

from __future__ import annotations

import math

from turnwise.floor.successes import UNKNOWN

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


def list_ends(ends: tuple[float, float] | None) -> list[float] | None:
    """As JSON has them; none where there is no share."""
    return None if ends is None else list(ends)


def show_share(share: float | None, episodes: int) -> str:
    """`0.58 (0.48 to 0.67)`, or that nobody knows."""
    if share is None:
        return UNKNOWN
    low, high = share_interval(share, episodes)
    return f"{share:.2f} ({low:.2f} to {high:.2f})"

"""How many episodes reached their goal, as far as anybody said.

In: episodes, each of which says it (true or false) or does not (None). Out: shares over those that are known. Refuses
to guess: what was earned on the way says nothing about the goal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from turnwise.errors import RewardError
from turnwise.floor.outsiders import show
from turnwise.types import StopReason, Trajectory

UNKNOWN = "unknown"
"""What is shown in place of a share that nobody knows."""


def read_success(given: object, whose: str) -> bool | None:
    """What somebody's code says about its goal; anything but a truth value, or None, would be guessed at."""
    if given is None:
        return None
    if not isinstance(given, bool | np.bool_):
        raise RewardError(f"{whose} {show(given)}; expected True, False, or None where nobody knows.")
    return bool(given)


def tell_successes(played: Sequence[Trajectory]) -> list[bool | None]:
    """Whether each reached its goal; None: nobody said.

    Where any of them says it, one that failed or was cut off before it could did not: a program that raises when its
    budget is spent would otherwise look better than it is.
    """
    said = [trajectory.is_success for trajectory in played]
    if all(one is None for one in said):
        return said
    return [_complete(one, trajectory) for one, trajectory in zip(said, played, strict=True)]


def share_of(said: Iterable[bool | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [one for one in said if one is not None]
    return sum(known) / len(known) if known else None


def show_success(share: float | None, form: str = ".0%") -> str:
    """`58%`, or that nobody knows."""
    return UNKNOWN if share is None else format(share, form)


def _complete(said: bool | None, trajectory: Trajectory) -> bool | None:
    return False if said is None and trajectory.stop_reason is not StopReason.TERMINATED else said

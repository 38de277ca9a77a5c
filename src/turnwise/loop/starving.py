"""Steps without anything to learn from: refused at once, or after a while, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.errors import LearnError
from turnwise.loop.explore import Explored
from turnwise.types import Group

_MAX_STARVED = 5
"""Steps in a row without anything to learn from."""


def refuse_to_starve(explored: Explored, step: int, num_starved: int) -> None:
    """Nothing to learn from is an error: at once where episodes failed, after a while where a filter dropped them."""
    if not num_starved:
        return
    if explored.kept or all(t.stop_reason.is_error for group in explored.played for t in group.trajectories):
        raise LearnError(f"no episode of step {step} can be learnt from. {first_failure(explored.played)}")
    if num_starved >= _MAX_STARVED:
        raise LearnError(
            f"no group has passed reward.filter in {num_starved} steps in a row, up to step {step}. Its siblings earn "
            "the same. Loosen the filter, make tasks easier or harder, or raise rollout.group_size or temperature."
        )


def first_failure(groups: Sequence[Group]) -> str:
    """Why the first episode that failed did so."""
    failed = (t for group in groups for t in group.trajectories if t.failure)
    return next((f"{t.id} ended with {t.stop_reason}: {t.failure}" for t in failed), "None of them failed.")

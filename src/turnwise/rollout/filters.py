"""Which groups are worth learning from: those whose siblings differ, or whose rewards lie in a chosen range.

In: played Groups. Out: the ones to keep, in playing order. Scores are read from raw rewards, before any shaping. It
plays nothing itself; refilling what was dropped is the loop's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turnwise.config.schema_learn import FilterScore, NoFilter, ThresholdFilter, TopKFilter, TopPFilter
from turnwise.types import Group

Scores = NDArray[np.float64]


def score_group(group: Group, by: FilterScore) -> float:
    """Over the siblings that did not fail; a group of failures has no score and never passes."""
    played = [t for t in group.trajectories if not t.stop_reason.is_error]
    if not played:
        return float("nan")
    match by:
        case "reward_std":
            return float(np.std([t.episode_return for t in played]))
        case "reward_mean":
            return float(np.mean([t.episode_return for t in played]))
        case "length":
            return float(np.mean([len(t.turns) for t in played]))


def filter_groups(
    groups: Sequence[Group], settings: NoFilter | TopKFilter | TopPFilter | ThresholdFilter
) -> list[Group]:
    """The groups that pass, in playing order."""
    if isinstance(settings, NoFilter):
        return list(groups)
    scores = np.array([score_group(group, settings.by) for group in groups])
    known = np.flatnonzero(~np.isnan(scores))
    match settings:
        case TopKFilter():
            kept = _top_k(scores, known, settings)
        case TopPFilter():
            kept = _top_p(scores, known, settings.share)
        case ThresholdFilter():
            above = -np.inf if settings.above is None else settings.above
            below = np.inf if settings.below is None else settings.below
            kept = known[(scores[known] > above) & (scores[known] < below)]
    return [groups[number] for number in sorted(kept)]


def _top_k(scores: Scores, known: NDArray[np.int64], settings: TopKFilter) -> NDArray[np.int64]:
    sign = -1 if settings.order == "largest" else 1
    num_kept = max(1, int(settings.share * len(scores)))
    return known[np.argsort(sign * scores[known], kind="stable")][:num_kept]


def _top_p(scores: Scores, known: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """The fewest groups, largest first, whose scores add up to `share` of the total."""
    weights = np.maximum(scores[known], 0.0)
    order = np.argsort(-weights, kind="stable")
    summed = np.cumsum(weights[order])
    if not len(known) or summed[-1] == 0:
        return known[:0]
    # The smallest prefix that reaches the share; rounding must not demand a group of weight zero.
    num_kept = int(np.searchsorted(summed, share * summed[-1] * (1 - 1e-12))) + 1
    return known[order[:num_kept]]

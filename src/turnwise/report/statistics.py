"""How tasks came out comes in; pass@k, means and differences go out, each with where the truth may lie.

Tasks are what is drawn: plays of one task are alike, so intervals draw whole tasks anew and never single plays. All
random numbers come from fixed seeds: the same results give the same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.infra.untrusted import UNKNOWN

_Z = 1.959964
"""Of the normal distribution: 95 % lie within this many standard deviations."""


def wilson_interval(share: float, episodes: int) -> tuple[float, float]:
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
    return wilson_interval(success, round(tasks * (1 - row.get("eval/success_unknown", 0.0))))


def list_ends(ends: tuple[float, float] | None) -> list[float] | None:
    """As JSON has them; none where there is no share."""
    return None if ends is None else list(ends)


def format_proportion(share: float | None, ends: Sequence[float] | None) -> str:
    """`0.58 (0.48 to 0.67)`, without what is in brackets where the interval is not known; or that nobody knows."""
    if share is None:
        return UNKNOWN
    return f"{share:.2f}" if ends is None else f"{share:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


_NUM_DRAWS = 4000
_ENDS = (2.5, 97.5)
"""Percentiles of a 95 % interval."""
_MAX_EXACT_SUM = 2_000_000
"""Up to this many different sums, the chance of each is computed."""
_MAX_EXACT_TASKS = 20
"""Up to this many tasks that differ, all their signs are tried where sums are too many."""


def pass_at_k(plays: int, successes: int, k: int) -> float:
    """The chance that k of these plays, drawn without looking, hold a success: unbiased for k fresh plays."""
    if not 1 <= k <= plays:
        raise ValueError(f"pass@{k} of {plays} plays: k must be from 1 to the number of plays")
    return 1.0 - math.comb(plays - successes, k) / math.comb(plays, k)


def ks_up_to(plays: int) -> list[int]:
    """For which k there is a pass@k: 1, 2, 4, … and all plays."""
    return sorted({plays, *(2**n for n in range(plays.bit_length()) if 2**n <= plays)})


def mean_interval(per_task: Sequence[float], *, is_share: bool) -> tuple[float, float]:
    """Bootstrap over tasks, at 95 %. Shares that are all 0, or all 1, have Wilson's interval: drawing equal numbers
    anew would claim to be certain.
    """
    values = np.asarray(per_task, dtype=np.float64)
    if is_share and (len(values) == 0 or (np.ptp(values) == 0 and values[0] in (0.0, 1.0))):
        return wilson_interval(float(values[0]) if len(values) else 0.0, len(values))
    return _ends_of(_draw_means(values))


def paired_interval(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Of the mean difference second - first. Each side has one row per seed, over the same tasks in the same order.

    Tasks are drawn anew for both sides together; where a side has several seeds, those are drawn anew as well, so that
    the interval is about the recipe and not about the runs that happen to be there.
    """
    rng = np.random.default_rng(0)
    sides = [np.asarray(side, dtype=np.float64) for side in (first, second)]
    num_tasks = sides[0].shape[1]
    means = np.empty(_NUM_DRAWS)
    for draw in range(_NUM_DRAWS):
        tasks = rng.integers(num_tasks, size=num_tasks)
        one, two = (side[rng.integers(len(side), size=len(side))][:, tasks].mean() for side in sides)
        means[draw] = two - one
    return _ends_of(means)


def sign_flip_p_value(differences: Sequence[Fraction]) -> float:
    """Two-sided: how often a difference at least this large comes about if both sides were the same.

    If they were, each task's difference could as well have the other sign. Of differences that are all -1, 0 or 1 this
    is McNemar's exact test. Exact where sums, or tasks that differ, are few; otherwise signs are drawn.
    """
    told = [abs(difference) for difference in differences if difference]
    if not told:
        return 1.0
    unit = math.lcm(*(difference.denominator for difference in told))
    sizes = [int(difference * unit) for difference in told]
    observed = abs(int(sum(differences, Fraction(0)) * unit))
    if sum(sizes) > _MAX_EXACT_SUM:
        is_few = len(sizes) <= _MAX_EXACT_TASKS
        return _enumerated_p_value(sizes, observed) if is_few else _drawn_p_value(sizes, observed)
    # chances[i]: of the sum i - sum(sizes) over all signs.
    chances = np.ones(1)
    for size in sizes:
        wider = np.zeros(len(chances) + 2 * size)
        wider[: len(chances)] += chances / 2
        wider[2 * size :] += chances / 2
        chances = wider
    sums = np.arange(len(chances)) - sum(sizes)
    return min(1.0, float(chances[np.abs(sums) >= observed].sum()))


def relabel_p_value(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided and exact over seeds: how often runs, dealt to two sides of these sizes, differ at least as much.

    None where a side has one run alone: then nothing is known about how runs vary.
    """
    if min(len(first), len(second)) < 2:
        return None
    runs = np.asarray([*first, *second], dtype=np.float64)
    observed = abs(float(np.mean(second) - np.mean(first)))
    rng, size, total = np.random.default_rng(0), len(first), float(runs.sum())
    if math.comb(len(runs), size) <= _NUM_DRAWS * 5:
        from_first = np.asarray(_choose(len(runs), size))
    else:
        from_first = np.stack([rng.permutation(len(runs))[:size] for _ in range(_NUM_DRAWS)])
    sums = runs[from_first].sum(axis=1)
    differences = np.abs((total - sums) / len(second) - sums / size)
    # Sums in another order may differ in the last digit.
    return float(np.mean(differences >= observed - 1e-12))


def _choose(number: int, size: int) -> list[list[int]]:
    if size == 0:
        return [[]]
    return [[*rest, last] for last in range(size - 1, number) for rest in _choose(last, size - 1)]


def _enumerated_p_value(sizes: Sequence[int], observed: int) -> float:
    # Whole numbers of any length: what is equal must count as equal.
    sums = [0]
    for size in sizes:
        sums = [total + signed for total in sums for signed in (size, -size)]
    return sum(abs(total) >= observed for total in sums) / len(sums)


def _drawn_p_value(sizes: Sequence[int], observed: int) -> float:
    rng = np.random.default_rng(0)
    signs = rng.integers(2, size=(_NUM_DRAWS, len(sizes))) * 2 - 1
    sums = np.abs(signs @ np.asarray(sizes, dtype=np.float64))
    # The signs that were seen count as one draw, so that nothing is ever impossible.
    return float((1 + np.count_nonzero(sums >= observed)) / (1 + _NUM_DRAWS))


def _draw_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=_NUM_DRAWS)
    return counts @ values / len(values)


def _ends_of(means: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(means, _ENDS)
    return float(low), float(high)

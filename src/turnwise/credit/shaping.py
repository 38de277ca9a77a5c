"""Rewards against those of comparable plays, before credit: what is left is how much better a play was than others.

In: experiences. Out: new experiences with normalised turn rewards, in the given order. Statistics are over
trajectories, never over rows, and raw rewards stay as they are, for those who judge by them. It refuses to know which
rule reads the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turnwise.config.schema_learn import NormaliseGrouping, NormaliseMethod
from turnwise.credit.group import EPSILON, group_mean_std
from turnwise.credit.layout import Floats, Ints, PlayedTokens, number_densely, play_back
from turnwise.types import Annotations, Experience


def normalise_rewards(
    experiences: Sequence[Experience], *, grouping: NormaliseGrouping, method: NormaliseMethod
) -> list[Experience]:
    """Each trajectory's sum of rewards is normalised, and with it the return of the greedy play it is measured by.

    Turn rewards are scaled where the method divides. What is then missing to the normalised sum goes to the last turn,
    so that differences between turns survive. A trajectory with nothing to be compared with keeps its rewards; plays
    that all earned the same have the sum 0 and are not scaled.
    """
    if method == "identity" or not experiences:
        return list(experiences)
    played = play_back(experiences, Annotations())
    turn_rewards, greedy_returns = _normalise_plays(played, _number_comparable(played, grouping), method)
    greedy_of = dict(zip(played.trajectory_ids, greedy_returns.tolist(), strict=True))
    normalised = []
    for row, rewards in zip(experiences, played.scatter_turns(turn_rewards), strict=True):
        greedy = None if row.greedy_return is None else greedy_of[row.id.trajectory]
        normalised.append(replace(row, turn_rewards=rewards, greedy_return=greedy))
    return normalised


def _number_comparable(played: PlayedTokens, grouping: NormaliseGrouping) -> Ints:
    """[trajectories] equal numbers for plays that are compared."""
    if grouping == "state":
        return played.group_of_trajectory
    if grouping == "inductive":
        return number_densely(trajectory.tag for trajectory in played.trajectory_ids)
    return np.zeros(len(played.trajectory_ids), dtype=np.int64)


def _normalise_plays(played: PlayedTokens, comparable: Ints, method: NormaliseMethod) -> tuple[Floats, Floats]:
    """[turns] rewards whose sum per trajectory is normalised, and [trajectories] greedy returns on the same scale."""
    starts = played.layout.trajectory_starts
    sums = played.layout.sum_turns(played.bare_rewards)
    means, stds, sizes = group_mean_std(sums, comparable)
    is_alone = sizes == 1
    scales = np.where((method == "mean") | (stds <= EPSILON), 1.0, 1 / (stds + EPSILON))
    turn_rewards = played.bare_rewards * np.repeat(scales, np.diff(starts))
    targets = np.where(is_alone, sums, _normalise(sums, means, stds, method))
    turn_rewards[starts[1:] - 1] += targets - played.layout.sum_turns(turn_rewards)
    greedy = played.greedy_returns
    return turn_rewards, np.where(is_alone, greedy, _normalise(greedy, means, stds, method))


def _normalise(sums: Floats, means: Floats, stds: Floats, method: NormaliseMethod) -> Floats:
    if method == "mean":
        return sums - means
    normalised = np.where(stds <= EPSILON, 0.0, (sums - means) / (stds + EPSILON))
    return np.clip(normalised, -1.0, 3.0) if method == "asym_clip" else normalised

"""Group-relative advantages: a trajectory is as good as it is better than its siblings.

Statistics are taken over trajectories, never over rows, so a long or finely cut trajectory counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat

from turnwise.config.schema_learn import NormaliseGrouping, NormaliseMethod
from turnwise.config.settings import Settings, WholeSettings
from turnwise.credit.layout import (
    Floats,
    Ints,
    PlayedTokens,
    TurnLayout,
    make_samples,
    number_densely,
    play_back,
    scan_back,
    whiten,
)
from turnwise.types import Annotations, Experience, Sample

OpmdBaseline = Literal["mean", "logavgexp"]
EPSILON = 1e-6
"""Added to a spread before dividing by it, as verl and Trinity-RFT do."""


def group_mean_std(scores: Floats, groups: Ints) -> tuple[Floats, Floats, Ints]:
    """Per trajectory: the mean, the unbiased standard deviation and the size of its group."""
    sizes = np.bincount(groups)
    means = np.bincount(groups, scores) / sizes
    squares = np.bincount(groups, (scores - means[groups]) ** 2)
    stds = np.sqrt(squares / np.maximum(sizes - 1, 1))
    return means[groups], stds[groups], sizes[groups].astype(np.int64)


def estimate_grpo(scores: Floats, groups: Ints, *, scale_by_std: bool, epsilon: float = EPSILON) -> Floats:
    """One advantage per trajectory (arXiv 2402.03300); alone in its group, a score has nothing to be compared with.

    Such a score is returned as it is, as verl does, so that singleton groups give plain REINFORCE.
    """
    means, stds, sizes = group_mean_std(scores, groups)
    is_alone = sizes == 1
    centred = scores - np.where(is_alone, 0.0, means)
    if not scale_by_std:
        return centred
    return centred / (np.where(is_alone, 1.0, stds) + epsilon)


def estimate_rloo(scores: Floats, groups: Ints) -> Floats:
    """Each score against the mean of the others (leave one out, arXiv 2402.14740); alone, it is returned as it is."""
    means, _, sizes = group_mean_std(scores, groups)
    others = np.where(sizes > 1, (means * sizes - scores) / np.maximum(sizes - 1, 1), 0.0)
    return scores - others


def estimate_opmd(scores: Floats, groups: Ints, *, baseline: OpmdBaseline, tau: float) -> Floats:
    """A score minus its group's baseline: the mean, or tau * log(mean(exp(score / tau))); alone, minus nothing."""
    means, _, sizes = group_mean_std(scores, groups)
    if baseline == "logavgexp":
        top = np.full(groups.max() + 1, -np.inf)
        np.maximum.at(top, groups, scores)
        sums = np.bincount(groups, np.exp((scores - top[groups]) / tau))
        means = (top + tau * np.log(sums / np.bincount(groups)))[groups]
    return scores - np.where(sizes > 1, means, 0.0)


class _TrajectoryRule:
    """One number per trajectory, the same for all its tokens."""

    needs_values = False
    needs_groups = True
    needs_greedy = False

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        scores = played.layout.sum_turns(played.turn_rewards)
        per_token = played.layout.trajectories_to_tokens(self._estimate(scores, played.group_of_trajectory))
        per_token = self._finish(per_token)
        return make_samples(played, per_token, per_token, annotations)

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        raise NotImplementedError

    def _finish(self, per_token: Floats) -> Floats:
        return per_token


class Grpo(_TrajectoryRule):
    """`credit: {type: grpo}`: the sum of rewards against the siblings', in units of their spread."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
        self.params = params

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=True)


class DrGrpo(_TrajectoryRule):
    """`credit: {type: dr_grpo}`: GRPO without the division by the spread (arXiv 2503.20783)."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
        self.params = params

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=False)


class Rloo(_TrajectoryRule):
    """`credit: {type: rloo}`: the sum of rewards against the mean of the other siblings."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
        self.params = params

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_rloo(scores, groups)


class OpmdParams(Settings):
    baseline: OpmdBaseline = "mean"
    """The group's mean, or its soft maximum at temperature `tau`."""
    tau: PositiveFloat = 1.0
    """Temperature of the soft maximum."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self.idle("tau", why=f"with {path}.baseline 'mean'") if self.baseline == "mean" else {}


class Opmd(_TrajectoryRule):
    """`credit: {type: opmd}`: the sum of rewards against the group's baseline, unscaled."""

    Params = OpmdParams

    def __init__(self, params: OpmdParams) -> None:
        self.params = params

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_opmd(scores, groups, baseline=self.params.baseline, tau=self.params.tau)


class ReinforcePpBaseline(_TrajectoryRule):
    """`credit: {type: reinforce_pp_baseline}`: minus the group's mean, then whitened over the batch's tokens."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
        self.params = params

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=False)

    def _finish(self, per_token: Floats) -> Floats:
        return whiten(per_token)


def estimate_returns(layout: TurnLayout, token_rewards: Floats, gamma: float) -> Floats:
    """The discounted sum of rewards from each sampled token on; observations in between do not discount."""
    return scan_back(token_rewards, layout.trajectory_token_starts, gamma)


class _ReturnRule:
    """The rewards to come as advantage."""

    needs_values = False
    needs_groups = False
    needs_greedy = False

    def __init__(self, gamma: float, *, should_whiten: bool) -> None:
        self._gamma = gamma
        self._should_whiten = should_whiten

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        returns = estimate_returns(played.layout, played.token_rewards, self._gamma)
        return make_samples(played, whiten(returns) if self._should_whiten else returns, returns, annotations)


class ReinforceParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""


class Reinforce(_ReturnRule):
    """`credit: {type: reinforce}`: the rewards to come, as they are."""

    Params = ReinforceParams

    def __init__(self, params: ReinforceParams) -> None:
        super().__init__(params.gamma, should_whiten=False)


class ReinforcePpParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""


class ReinforcePp(_ReturnRule):
    """`credit: {type: reinforce_pp}`: the rewards to come, whitened over the batch (arXiv 2501.03262)."""

    Params = ReinforcePpParams

    def __init__(self, params: ReinforcePpParams) -> None:
        super().__init__(params.gamma, should_whiten=True)


def estimate_remax(layout: TurnLayout, returns: Floats, greedy_returns: Floats) -> Floats:
    """[tokens] the rewards to come minus the greedy return; where that is NaN there is nothing to learn from: 0."""
    baseline = layout.trajectories_to_tokens(greedy_returns)
    return np.where(np.isnan(baseline), 0.0, returns - baseline)


class Remax:
    """`credit: {type: remax}`"""

    Params = Settings
    needs_values = False
    needs_groups = False
    needs_greedy = True

    def __init__(self, params: Settings) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        returns = estimate_returns(played.layout, played.token_rewards, gamma=1.0)
        return make_samples(played, estimate_remax(played.layout, returns, played.greedy_returns), returns, annotations)


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

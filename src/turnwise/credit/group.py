"""Group-relative advantages: a trajectory is as good as it is better than its siblings.

Statistics are taken over trajectories, never over rows, so a long or finely cut trajectory counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, isnan, log, sqrt
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat

from turnwise.config.kinds import AdvantageEstimator
from turnwise.config.schema_learn import NormaliseGrouping, NormaliseMethod
from turnwise.config.settings import WholeSettings
from turnwise.credit.layout import (
    FlatTokens,
    Floats,
    Ints,
    TurnLayout,
    flatten_experiences,
    make_samples,
    number_densely,
    scan_back,
    whiten,
)
from turnwise.credit.reference import (
    WHITENING_VARIANCE,
    TokenTrajectory,
    by_group,
    center,
    discount,
    mean,
    spread,
    standardize,
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


class _TrajectoryEstimator(AdvantageEstimator):
    """One number per trajectory, the same for all its tokens."""

    needs_groups = True

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        scores = flat.layout.sum_turns(flat.turn_rewards)
        per_token = flat.layout.trajectories_to_tokens(self._estimate(scores, flat.group_of_trajectory))
        per_token = self._finish(per_token)
        return make_samples(flat, per_token, per_token, annotations)

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        raise NotImplementedError

    def _finish(self, per_token: Floats) -> Floats:
        return per_token

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        numbers = self._reference([trajectory.total for trajectory in trajectories])
        return [[number] * len(t.turns) for number, t in zip(numbers, trajectories, strict=True)]

    def _reference(self, scores: Sequence[float]) -> list[float]:
        """One number for each trajectory of a group."""
        raise NotImplementedError


class Grpo(_TrajectoryEstimator, name="grpo"):
    """Sum of rewards minus the mean of the group, in units of the group's standard deviation."""

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=True)

    def _reference(self, scores: Sequence[float]) -> list[float]:
        return standardize(scores)


class DrGrpo(_TrajectoryEstimator, name="dr_grpo"):
    """GRPO without the division by the standard deviation (arXiv 2503.20783)."""

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=False)

    def _reference(self, scores: Sequence[float]) -> list[float]:
        return center(scores)


class Rloo(_TrajectoryEstimator, name="rloo"):
    """Sum of rewards minus the mean of the other trajectories of the group."""

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_rloo(scores, groups)

    def _reference(self, scores: Sequence[float]) -> list[float]:
        others = [[other for j, other in enumerate(scores) if j != i] for i in range(len(scores))]
        return [score - (mean(rest) if rest else 0.0) for score, rest in zip(scores, others, strict=True)]


class Opmd(_TrajectoryEstimator, name="opmd"):
    """Sum of rewards minus the group's baseline, unscaled."""

    baseline: OpmdBaseline = "mean"
    """The group's mean, or its soft maximum at temperature `tau`."""
    tau: PositiveFloat = 1.0
    """Temperature of the soft maximum."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self.idle("tau", why=f"with {path}.baseline 'mean'") if self.baseline == "mean" else {}

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_opmd(scores, groups, baseline=self.baseline, tau=self.tau)

    def _reference(self, scores: Sequence[float]) -> list[float]:
        if self.baseline == "mean" or len(scores) == 1:
            return center(scores)
        top = max(scores)
        soft = top + self.tau * log(mean([exp((score - top) / self.tau) for score in scores]))
        return [score - soft for score in scores]


class ReinforcePpBaseline(_TrajectoryEstimator, name="reinforce_pp_baseline"):
    """Sum of rewards minus the group's mean, then whitened over the batch's tokens."""

    def _estimate(self, scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=False)

    def _finish(self, per_token: Floats) -> Floats:
        return whiten(per_token)

    def needs_batch(self) -> bool:
        return True

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        plain = by_group(trajectories, super().reference)
        every = [number for tokens in plain for number in tokens]
        middle, unit = mean(every), sqrt(spread(every) ** 2 + WHITENING_VARIANCE)
        return [[(number - middle) / unit for number in tokens] for tokens in plain]

    def _reference(self, scores: Sequence[float]) -> list[float]:
        return center(scores)


def estimate_returns(layout: TurnLayout, token_rewards: Floats, gamma: float) -> Floats:
    """The discounted sum of rewards from each sampled token on; observations in between do not discount."""
    return scan_back(token_rewards, layout.trajectory_token_starts, gamma)


class _ReturnEstimator(AdvantageEstimator):
    """Discounted rewards from each token on."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        returns = estimate_returns(flat.layout, flat.token_rewards, self.gamma)
        return make_samples(flat, whiten(returns) if self.whitens() else returns, returns, annotations)

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        return [discount(trajectory.token_rewards(), self.gamma) for trajectory in trajectories]


class Reinforce(_ReturnEstimator, name="reinforce"):
    """The rewards to come, as they are."""


class ReinforcePp(_ReturnEstimator, name="reinforce_pp"):
    """The rewards to come, whitened over the batch (arXiv 2501.03262)."""

    whitening = "from_returns"

    def whitens(self) -> bool:
        return True


def estimate_remax(layout: TurnLayout, returns: Floats, greedy_returns: Floats) -> Floats:
    """[tokens] the rewards to come minus the greedy return; where that is NaN there is nothing to learn from: 0."""
    baseline = layout.trajectories_to_tokens(greedy_returns)
    return np.where(np.isnan(baseline), 0.0, returns - baseline)


class Remax(AdvantageEstimator, name="remax"):
    """The rewards to come minus the return of a greedy rollout of the same task."""

    needs_greedy = True

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        returns = estimate_returns(flat.layout, flat.token_rewards, gamma=1.0)
        return make_samples(flat, estimate_remax(flat.layout, returns, flat.greedy_returns), returns, annotations)

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        return [self._of_one(trajectory) for trajectory in trajectories]

    def _of_one(self, trajectory: TokenTrajectory) -> list[float]:
        greedy = trajectory.greedy_return
        if greedy is None or isnan(greedy):
            return [0.0] * len(trajectory.turns)
        return [number - greedy for number in discount(trajectory.token_rewards(), 1.0)]


def normalize_rewards(
    experiences: Sequence[Experience], *, grouping: NormaliseGrouping, method: NormaliseMethod
) -> list[Experience]:
    """Each trajectory's sum of rewards is normalised, and with it the return of the greedy play it is measured by.

    Turn rewards are scaled where the method divides. What is then missing to the normalised sum goes to the last turn,
    so that differences between turns survive. A trajectory with nothing to be compared with keeps its rewards; plays
    that all earned the same have the sum 0 and are not scaled.
    """
    if method == "identity" or not experiences:
        return list(experiences)
    flat = flatten_experiences(experiences, Annotations())
    turn_rewards, greedy_returns = _normalise_plays(flat, _number_comparable(flat, grouping), method)
    greedy_of = dict(zip(flat.trajectory_ids, greedy_returns.tolist(), strict=True))
    normalised = []
    for row, rewards in zip(experiences, flat.scatter_turns(turn_rewards), strict=True):
        greedy = None if row.greedy_return is None else greedy_of[row.id.trajectory]
        normalised.append(replace(row, turn_rewards=rewards, greedy_return=greedy))
    return normalised


def _number_comparable(flat: FlatTokens, grouping: NormaliseGrouping) -> Ints:
    """[trajectories] equal numbers for plays that are compared."""
    if grouping == "state":
        return flat.group_of_trajectory
    if grouping == "inductive":
        return number_densely(trajectory.tag for trajectory in flat.trajectory_ids)
    return np.zeros(len(flat.trajectory_ids), dtype=np.int64)


def _normalise_plays(flat: FlatTokens, comparable: Ints, method: NormaliseMethod) -> tuple[Floats, Floats]:
    """[turns] rewards whose sum per trajectory is normalised, and [trajectories] greedy returns on the same scale."""
    starts = flat.layout.trajectory_starts
    sums = flat.layout.sum_turns(flat.bare_rewards)
    means, stds, sizes = group_mean_std(sums, comparable)
    is_alone = sizes == 1
    scales = np.where((method == "mean") | (stds <= EPSILON), 1.0, 1 / (stds + EPSILON))
    turn_rewards = flat.bare_rewards * np.repeat(scales, np.diff(starts))
    targets = np.where(is_alone, sums, _normalise(sums, means, stds, method))
    turn_rewards[starts[1:] - 1] += targets - flat.layout.sum_turns(turn_rewards)
    greedy = flat.greedy_returns
    return turn_rewards, np.where(is_alone, greedy, _normalise(greedy, means, stds, method))


def _normalise(sums: Floats, means: Floats, stds: Floats, method: NormaliseMethod) -> Floats:
    if method == "mean":
        return sums - means
    normalised = np.where(stds <= EPSILON, 0.0, (sums - means) / (stds + EPSILON))
    return np.clip(normalised, -1.0, 3.0) if method == "asym_clip" else normalised

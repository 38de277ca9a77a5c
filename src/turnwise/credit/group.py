"""Group-relative advantages: a trajectory is as good as it is better than its siblings.

Statistics are taken over trajectories, never over rows, so a long or finely cut trajectory counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import PositiveFloat

from turnwise.config.settings import Settings, WholeSettings
from turnwise.credit.layout import Floats, Ints, play_back, whiten
from turnwise.credit.samples import make_samples
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

"""Group-relative advantages: a trajectory is as good as it is better than its siblings.

Statistics are taken over trajectories, never over rows, so a long or finely cut trajectory counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from turnwise.config.settings import Settings
from turnwise.credit.layout import Floats, Ints, play_back
from turnwise.credit.samples import make_samples
from turnwise.types import Annotations, Experience, Sample


def group_mean_std(scores: Floats, groups: Ints) -> tuple[Floats, Floats, Ints]:
    """Per trajectory: the mean, the unbiased standard deviation and the size of its group."""
    sizes = np.bincount(groups)
    means = np.bincount(groups, scores) / sizes
    squares = np.bincount(groups, (scores - means[groups]) ** 2)
    stds = np.sqrt(squares / np.maximum(sizes - 1, 1))
    return means[groups], stds[groups], sizes[groups].astype(np.int64)


def estimate_grpo(scores: Floats, groups: Ints, *, scale_by_std: bool, epsilon: float = 1e-6) -> Floats:
    """One advantage per trajectory (arXiv 2402.03300); alone in its group, a score has nothing to be compared with.

    Such a score is returned as it is, as verl does, so that singleton groups give plain REINFORCE.
    """
    means, stds, sizes = group_mean_std(scores, groups)
    is_alone = sizes == 1
    centred = scores - np.where(is_alone, 0.0, means)
    if not scale_by_std:
        return centred
    return centred / (np.where(is_alone, 1.0, stds) + epsilon)


class GrpoParams(Settings):
    type: Literal["grpo"] = "grpo"
    scale_by_std: bool = True
    """Divide by the group's standard deviation; false is Dr. GRPO (arXiv 2503.20783)."""


class Grpo:
    """`credit: {type: grpo}`: the sum of a trajectory's rewards against its siblings', the same for all its tokens."""

    Params = GrpoParams
    needs_values = False
    needs_groups = True

    def __init__(self, params: GrpoParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences)
        scores = played.layout.sum_turns(played.turn_rewards)
        advantages = estimate_grpo(scores, played.group_of_trajectory, scale_by_std=self.params.scale_by_std)
        per_token = played.layout.trajectories_to_tokens(advantages)
        return make_samples(played, per_token, per_token, annotations)

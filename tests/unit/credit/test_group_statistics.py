"""Statistics of a group are over its trajectories, whatever rows they were cut into: see also `tests/contracts`."""

from __future__ import annotations

import numpy as np

from turnwise.credit.group import DrGrpo, Grpo
from turnwise.types import Annotations

from .rows import Play, make_batch, make_rows, sampled


def test_group_statistics_count_trajectories_and_not_rows() -> None:
    """One sibling in four rows, three in one row each: over rows the mean would be 4/7, over trajectories it is 1/4."""
    batch = [Play([0, 0, 0, 1.0], [[0.0]] * 4, sibling=0)]
    batch += [Play([0, 0, 0, 0.0], [[0.0]] * 4, sibling=n) for n in (1, 2, 3)]
    rows = make_rows(batch[0], cuts=(1, 2, 3))[0] + make_batch(batch[1:])[0]
    samples = DrGrpo()(rows, Annotations())
    for sample, expected in zip(samples, [0.75] * 4 + [-0.25] * 3, strict=True):
        mask = sample.experience.segment.loss_mask
        np.testing.assert_allclose(sample.advantages[mask], expected, atol=1e-6)


def test_long_trajectories_do_not_weigh_more_in_a_group() -> None:
    long, short = Play([0.0, 1.0], [[0.0] * 4] * 2, sibling=0), Play([0.0], [[0.0]], sibling=1)
    first, second = sampled(Grpo(), [long, short])
    np.testing.assert_allclose(first, 0.70710578, atol=1e-6)
    np.testing.assert_allclose(second, -0.70710578, atol=1e-6)


def test_groups_of_different_rollouts_are_not_compared() -> None:
    rows = [row for n in (0, 1) for row in make_rows(Play([float(n)], [[0.0]]), rollout=n)[0]]
    samples = DrGrpo()(rows, Annotations())
    assert [float(s.advantages.sum()) for s in samples] == [0.0, 1.0]  # alone in its group, a score stays as it is

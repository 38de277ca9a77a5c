"""GiGPO: numbers by hand, and which turns are compared with which."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.credit.step_level import Gigpo

from .rows import Play, sampled

ONE = [[0.0]]


def test_numbers_by_hand() -> None:
    good = Play([0.0, 1.0], ONE * 2, sibling=0, states=[7, 8])
    bad = Play([0.0, 0.0], ONE * 2, sibling=1, states=[7, 9])
    found = sampled(Gigpo(gamma=0.5, step_weight=2.0), [good, bad])
    # Sums 1 and 0, mean 1/2. Both began in state 7, with 1/2 and 0 to come, mean 1/4; states 8 and 9 were met once.
    np.testing.assert_allclose(np.concatenate(found), [0.5 + 2 * 0.25, 0.5, -0.5 - 2 * 0.25, -0.5], atol=1e-6)


def test_both_advantages_are_in_units_of_their_spread() -> None:
    good = Play([0.0, 1.0], ONE * 2, sibling=0, states=[7, 8])
    bad = Play([0.0, 0.0], ONE * 2, sibling=1, states=[7, 9])
    found = sampled(Gigpo(gamma=0.5, step_weight=2.0, scale_by_std=True), [good, bad])
    unit = np.sqrt(0.5)
    np.testing.assert_allclose(np.concatenate(found), [unit + 2 * unit, unit, -3 * unit, -unit], atol=1e-5)


def test_a_state_met_again_in_the_same_play_is_the_same_state() -> None:
    """Walking in a circle: of two turns in one state, the one nearer to the reward is the better one."""
    plays = [Play([0.0, 0.0, 1.0], ONE * 3, sibling=n, states=[1 + 10 * n, 2 + 10 * n, 1 + 10 * n]) for n in range(2)]
    for found in sampled(Gigpo(gamma=0.5), plays):
        np.testing.assert_allclose(found, [-0.375, 0.0, 0.375], atol=1e-6)


@pytest.mark.parametrize("scale_by_std", [False, True])
def test_equal_states_of_different_groups_are_never_compared(scale_by_std: bool) -> None:
    def group(task: str, rewards: list[float]) -> list[Play]:
        return [Play([r, 0.0], ONE * 2, group=task, sibling=n, states=[7, 7]) for n, r in enumerate(rewards)]

    rule = Gigpo(scale_by_std=scale_by_std)
    one, other = group("lake/train/1", [1.0, 0.0, 0.0]), group("lake/train/2", [50.0, -20.0])
    together = sampled(rule, [*one, *other])
    for found, apart in zip(together, [*sampled(rule, one), *sampled(rule, other)], strict=True):
        np.testing.assert_allclose(found, apart, atol=1e-6)


def test_states_that_differ_in_their_last_bit_only_are_different() -> None:
    """Fingerprints use all 64 bits; as floating-point numbers these two would be one."""
    top = 2**64 - 1
    plays = [Play([float(n)], ONE, sibling=n, states=[top - n]) for n in range(2)]
    np.testing.assert_allclose(np.concatenate(sampled(Gigpo(), plays)), [-0.5, 0.5], atol=1e-6)

"""pass@k, intervals over tasks and exact tests, against counting by hand."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from turnwise.report.statistics import (
    ks_up_to,
    mean_interval,
    paired_interval,
    pass_at_k,
    relabel_p_value,
    sign_flip_p_value,
    wilson_interval,
)


@pytest.mark.parametrize(("plays", "successes"), [(5, 0), (5, 2), (6, 3), (4, 4)])
def test_pass_at_k_is_the_share_of_draws_with_a_success(plays: int, successes: int) -> None:
    outcomes = [1] * successes + [0] * (plays - successes)
    for k in range(1, plays + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(plays, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_unbiased() -> None:
    """Over many tasks with a known chance, as against the share of tasks with any success, which is not."""
    rng, chance = np.random.default_rng(0), 0.2
    successes = rng.binomial(8, chance, size=20_000)
    found = np.mean([pass_at_k(8, int(c), 4) for c in successes])
    assert found == pytest.approx(1 - (1 - chance) ** 4, abs=0.01)


def test_pass_at_more_than_was_played_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@3 of 2 plays"):
        pass_at_k(2, 1, 3)


def test_ks_double_up_to_all_plays() -> None:
    assert [ks_up_to(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = [
        low <= 0.3 <= high for low, high in (mean_interval(rng.beta(3, 7, size=60), is_share=True) for _ in range(200))
    ]
    assert 0.88 <= np.mean(covered) <= 0.99


def test_all_or_nothing_is_not_certain() -> None:
    assert mean_interval([1.0] * 10, is_share=True) == wilson_interval(1.0, 10)
    assert mean_interval([0.0] * 10, is_share=True) == wilson_interval(0.0, 10)
    assert mean_interval([0.5] * 10, is_share=False) == (0.5, 0.5)
    assert mean_interval([0, 1, 1, 0], is_share=True) == mean_interval([0, 1, 1, 0], is_share=True)


def test_one_play_each_is_mcnemars_exact_test() -> None:
    better, worse = 9, 2
    differences = [Fraction(1)] * better + [Fraction(-1)] * worse + [Fraction(0)] * 30
    by_hand = 2 * sum(math.comb(11, n) for n in range(worse + 1)) / 2**11
    assert sign_flip_p_value(differences) == pytest.approx(by_hand)


def test_the_p_value_is_that_of_all_signs() -> None:
    differences = [Fraction(1, 4), Fraction(-1, 2), Fraction(3, 4), Fraction(1, 3), Fraction(2, 3)]
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * abs(d) for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=5)
    ]
    assert sign_flip_p_value(differences) == pytest.approx(np.mean([s >= observed for s in sums]))
    assert sign_flip_p_value([Fraction(0)] * 5) == 1.0


def test_few_tasks_with_sums_of_any_kind_are_exact() -> None:
    returns = [Fraction(number) for number in (0.123456789, 0.1, 0.7071067811, 0.3333333333, 1e-9)]
    assert sign_flip_p_value(returns) == 2 / 2**5
    assert sign_flip_p_value([Fraction(1, 3), Fraction(-(10**9), 10**9 + 7)]) == 1.0


def test_too_many_sums_are_drawn_instead() -> None:
    rng = np.random.default_rng(0)
    awkward = [Fraction(int(n), 9973 * 9967) for n in rng.integers(-(10**7), 3 * 10**7, size=40)]
    assert 0 < sign_flip_p_value(awkward) < 0.01


def test_paired_tasks_are_drawn_together() -> None:
    """Both sides find the same tasks hard: the difference is far surer than either side."""
    hard = np.random.default_rng(0).uniform(size=100)
    low, high = paired_interval([hard * 0.9], [hard * 0.9 + 0.1])
    assert (low, high) == (pytest.approx(0.1), pytest.approx(0.1))


def test_seeds_widen_the_interval() -> None:
    base = np.random.default_rng(0).uniform(size=50)
    alike = paired_interval([base, base], [base + 0.1, base + 0.1])
    varied = paired_interval([base, base + 0.2], [base, base + 0.4])
    assert alike[1] - alike[0] < varied[1] - varied[0]


def test_runs_dealt_anew() -> None:
    assert relabel_p_value([0.1, 0.2, 0.3], [0.7, 0.8, 0.9]) == pytest.approx(2 / 20)
    assert relabel_p_value([0.1, 0.9], [0.1, 0.9]) == 1.0
    assert relabel_p_value([0.1], [0.9, 0.8]) is None
    many = relabel_p_value([0.0] * 10, [1.0] * 10)
    assert many is not None
    assert many < 0.01

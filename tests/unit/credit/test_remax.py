"""ReMax: numbers by hand, and plays without a greedy one beside them."""

from __future__ import annotations

import numpy as np

from turnwise.credit.group import Remax

from .rows import Play, credited


def test_numbers_by_hand() -> None:
    play = Play([1.0, 2.0], [[0.0, 0.0], [0.0]], greedy_return=0.5, penalties=[[-0.25, 0.0], [-0.5]])
    ((advantages, returns),) = credited(Remax(), [play])
    np.testing.assert_allclose(returns, [2.25, 2.5, 1.5])
    np.testing.assert_allclose(advantages, [1.75, 2.0, 1.0])


def test_without_a_greedy_play_a_trajectory_teaches_nothing_and_the_others_go_on() -> None:
    lost = Play([1.0], [[0.0, 0.0]], group="lake/train/1")
    kept = Play([1.0], [[0.0, 0.0]], group="lake/train/2", greedy_return=0.0)
    (nothing, _), (something, _) = credited(Remax(), [lost, kept])
    assert nothing.tolist() == [0.0, 0.0]
    assert something.tolist() == [1.0, 1.0]


def test_a_reward_that_is_no_number_is_not_hidden() -> None:
    ((advantages, _),) = credited(Remax(), [Play([float("nan")], [[0.0]], greedy_return=0.0)])
    assert np.isnan(advantages).all()

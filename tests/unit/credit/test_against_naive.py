"""The vectorised estimators against loops over single tokens that follow the formulas word by word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.credit.gae import BiLevelGae, Gae

from .rows import Play, credited

numbers = st.floats(min_value=-2, max_value=2, width=32)
shares = st.sampled_from([0.0, 0.3, 0.9, 1.0])


@st.composite
def plays(draw: st.DrawFn) -> Play:
    values = draw(st.lists(st.lists(numbers, min_size=1, max_size=4), min_size=1, max_size=4))
    rewards = [draw(st.sampled_from([0.0, 0.0, 1.0, -0.5])) for _ in values]
    penalties = [[draw(st.sampled_from([0.0, -0.25, 0.125])) for _ in turn] for turn in values]
    return Play(rewards, values, is_truncated=draw(st.booleans()), penalties=penalties)


def numbered(batch: list[Play]) -> list[Play]:
    return [replace(play, sibling=n) for n, play in enumerate(batch)]


def naive_gae(play: Play, gamma: float, lam: float) -> tuple[list[float], list[float]]:
    values = [v for turn in play.values for v in turn]
    rewards: list[float] = []
    for reward, penalties in zip(play.rewards, play.token_penalties, strict=True):
        rewards += penalties
        rewards[-1] += reward
    advantages = [0.0] * len(values)
    following_value, following_advantage = (values[-1] if play.is_truncated else 0.0), 0.0
    for t in reversed(range(len(values))):
        delta = rewards[t] + gamma * following_value - values[t]
        advantages[t] = delta + gamma * lam * following_advantage
        following_value, following_advantage = values[t], advantages[t]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def naive_bi_level(play: Play, p: BiLevelGae) -> tuple[list[float], list[float]]:
    at = -1 if p.turn_value_at == "last" else 0
    turn_values = [turn[at] for turn in play.values]
    following_value = play.values[-1][-1] if play.is_truncated else 0.0
    following_advantage = 0.0
    turn_returns = [0.0] * len(turn_values)
    for k in reversed(range(len(turn_values))):
        earned = play.rewards[k] + sum(play.token_penalties[k])
        delta = earned + p.high_level_gamma * following_value - turn_values[k]
        advantage = delta + p.high_level_gamma * p.high_level_lam * following_advantage
        turn_returns[k] = advantage + turn_values[k]
        following_value, following_advantage = turn_values[k], advantage
    advantages: list[float] = []
    for turn, penalties, turn_return in zip(play.values, play.token_penalties, turn_returns, strict=True):
        inside = [0.0] * len(turn)
        next_value = next_advantage = 0.0
        for t in reversed(range(len(turn))):
            reward = penalties[t]
            if t == len(turn) - 1:
                reward += turn_return - sum(penalties)
            inside[t] = reward + p.gamma * next_value - turn[t] + p.gamma * p.lam * next_advantage
            next_value, next_advantage = turn[t], inside[t]
        advantages += inside
    values = [v for turn in play.values for v in turn]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


@settings(max_examples=80, deadline=None)
@given(st.lists(plays(), min_size=1, max_size=4), shares, shares)
def test_gae_equals_a_loop_over_tokens(batch: list[Play], gamma: float, lam: float) -> None:
    batch = numbered(batch)
    found = credited(Gae(gamma=gamma, lam=lam, whiten=False), batch)
    for play, (advantages, returns) in zip(batch, found, strict=True):
        expected_advantages, expected_returns = naive_gae(play, gamma, lam)
        np.testing.assert_allclose(advantages, expected_advantages, atol=1e-5)
        np.testing.assert_allclose(returns, expected_returns, atol=1e-5)


@settings(max_examples=120, deadline=None)
@given(st.lists(plays(), min_size=1, max_size=4), shares, shares, shares, shares, st.sampled_from(["first", "last"]))
def test_bi_level_equals_a_loop_over_turns_and_tokens(
    batch: list[Play], gamma: float, lam: float, high_gamma: float, high_lam: float, at: str
) -> None:
    batch = numbered(batch)
    params = BiLevelGae.model_validate(
        {
            "gamma": gamma,
            "lam": lam,
            "high_level_gamma": high_gamma,
            "high_level_lam": high_lam,
            "turn_value_at": at,
            "whiten": False,
        }
    )
    found = credited(params, batch)
    for play, (advantages, returns) in zip(batch, found, strict=True):
        expected_advantages, expected_returns = naive_bi_level(play, params)
        np.testing.assert_allclose(advantages, expected_advantages, atol=1e-5)
        np.testing.assert_allclose(returns, expected_returns, atol=1e-5)


@pytest.mark.parametrize("rule", [Gae(whiten=False), BiLevelGae(whiten=False)])
def test_only_a_truncated_trajectory_is_bootstrapped(rule: object) -> None:
    ended, cut = (Play([0.0], [[0.25, 0.5]], is_truncated=t, sibling=int(t)) for t in (False, True))
    (ended_advantages, _), (cut_advantages, _) = credited(rule, [ended, cut])
    np.testing.assert_allclose(ended_advantages, [-0.25, -0.5], atol=1e-6)
    assert (cut_advantages > ended_advantages).all()


def test_an_action_before_a_turn_of_zero_reward_gets_credit_for_what_follows() -> None:
    """Turns are recorded, not guessed from rewards: the middle turn earned nothing and still counts as one step."""
    rule = BiLevelGae(high_level_gamma=0.5, whiten=False)
    ((advantages, _),) = credited(rule, [Play([0.0, 0.0, 1.0], [[0.0], [0.0], [0.0]])])
    np.testing.assert_allclose(advantages, [0.25, 0.5, 1.0], atol=1e-6)


def test_bi_level_charges_a_penalty_to_the_tokens_up_to_it_and_to_no_later_one() -> None:
    play = Play([1.0, 2.0], [[0.5, -1.0, 0.25], [0.75, 0.0]], penalties=[[-0.5, -0.25, -0.125], [0.0, -1.0]])
    rule = BiLevelGae(high_level_gamma=0.5, whiten=False)
    ((_, returns),) = credited(rule, [play])
    # Turn returns: 2 - 1, and 1 - 0.875 + 0.5 * 1. The first token of a turn sees exactly that.
    np.testing.assert_allclose(returns, [0.625, 0.625 + 0.5, 0.625 + 0.75, 1.0, 1.0], atol=1e-6)

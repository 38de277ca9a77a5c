"""Penalties of single tokens in every rule, against loops over plays that follow the definitions word by word."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt
from statistics import mean, stdev, variance
from typing import Any

import numpy as np
import pytest

from turnwise.config.kinds import ADVANTAGE_ESTIMATORS
from turnwise.credit.layout import flatten_experiences
from turnwise.types import Annotations

from .rows import Play, make_batch, sampled
from .test_against_naive import naive_bi_level, naive_gae

Advantages = list[list[float]]
"""Per play, per token."""


def turn_rewards(play: Play) -> list[float]:
    return [reward + sum(paid) for reward, paid in zip(play.rewards, play.token_penalties, strict=True)]


def score(play: Play) -> float:
    return sum(turn_rewards(play))


def siblings(play: Play, batch: list[Play]) -> list[Play]:
    return [other for other in batch if other.group == play.group]


def rewards_to_come(rewards: list[float], gamma: float) -> list[float]:
    return [sum(gamma**k * r for k, r in enumerate(rewards[start:])) for start in range(len(rewards))]


def token_rewards(play: Play) -> list[float]:
    rewards: list[float] = []
    for reward, paid in zip(play.rewards, play.token_penalties, strict=True):
        rewards += [*paid[:-1], paid[-1] + reward]
    return rewards


def on_all_tokens(per_play: Callable[[Play, list[Play]], float]) -> Callable[[list[Play]], Advantages]:
    return lambda batch: [[per_play(play, batch)] * sum(map(len, play.values)) for play in batch]


def on_turns(per_turn: Callable[[Play, list[Play]], list[float]]) -> Callable[[list[Play]], Advantages]:
    return lambda batch: [
        [a for a, turn in zip(per_turn(play, batch), play.values, strict=True) for _ in turn] for play in batch
    ]


def whitened(naive: Callable[[list[Play]], Advantages]) -> Callable[[list[Play]], Advantages]:
    def whiten(batch: list[Play]) -> Advantages:
        plain = naive(batch)
        tokens = [a for row in plain for a in row]
        return [[(a - mean(tokens)) / sqrt(variance(tokens) + 1e-8) for a in row] for row in plain]

    return whiten


def minus_mean(play: Play, batch: list[Play]) -> float:
    return score(play) - mean(map(score, siblings(play, batch)))


def grpo(play: Play, batch: list[Play]) -> float:
    return minus_mean(play, batch) / (stdev(map(score, siblings(play, batch))) + 1e-6)


def rloo(play: Play, batch: list[Play]) -> float:
    return score(play) - mean(score(other) for other in siblings(play, batch) if other is not play)


def opmd(play: Play, batch: list[Play]) -> float:
    return score(play) - 0.5 * log(mean(exp(score(other) / 0.5) for other in siblings(play, batch)))


def multi_step_grpo(play: Play, batch: list[Play]) -> float:
    def last_reward_and_all_penalties(other: Play) -> float:
        return other.rewards[-1] + sum(sum(paid) for paid in other.token_penalties)

    scores = [last_reward_and_all_penalties(other) for other in siblings(play, batch)]
    return (last_reward_and_all_penalties(play) - mean(scores)) / (stdev(scores) + 1e-6)


def step_return(play: Play, batch: list[Play]) -> list[float]:
    returns = [g for other in siblings(play, batch) for g in rewards_to_come(turn_rewards(other), 0.9)]
    return [(g - mean(returns)) / (stdev(returns) + 1e-6) for g in rewards_to_come(turn_rewards(play), 0.9)]


def turn_gae(play: Play, _: list[Play]) -> list[float]:
    values = [turn[0] for turn in play.values] + [play.values[-1][-1] if play.is_truncated else 0.0]
    deltas = [r + 0.9 * values[k + 1] - values[k] for k, r in enumerate(turn_rewards(play))]
    return rewards_to_come(deltas, 0.9 * 0.8)


def gigpo(play: Play, batch: list[Play]) -> list[float]:
    advantages = []
    for state, g in zip(play.states or (), rewards_to_come(turn_rewards(play), 0.9), strict=True):
        same = [
            other_g
            for other in siblings(play, batch)
            for other_state, other_g in zip(other.states or (), rewards_to_come(turn_rewards(other), 0.9), strict=True)
            if other_state == state
        ]
        step = (g - mean(same)) / (stdev(same) + 1e-6) if len(same) > 1 else 0.0
        advantages.append(grpo(play, batch) + 0.5 * step)
    return advantages


def remax(batch: list[Play]) -> Advantages:
    return [
        [0.0 if p.greedy_return is None else g - p.greedy_return for g in rewards_to_come(token_rewards(p), 1.0)]
        for p in batch
    ]


def bi_level(batch: list[Play]) -> Advantages:
    rule: Any = ADVANTAGE_ESTIMATORS.find("bi_level_gae")
    params = rule(**NAIVE["bi_level_gae"][0])
    return [naive_bi_level(play, params)[0] for play in batch]


NAIVE: dict[str, tuple[dict[str, object], Callable[[list[Play]], Advantages]]] = {
    "gae": ({"gamma": 0.9, "lam": 0.8, "whiten": False}, lambda batch: [naive_gae(p, 0.9, 0.8)[0] for p in batch]),
    "bi_level_gae": ({"gamma": 0.9, "lam": 0.8, "high_level_lam": 0.7, "whiten": False}, bi_level),
    "turn_gae": ({"gamma": 0.9, "lam": 0.8, "whiten": False}, on_turns(turn_gae)),
    "grpo": ({}, on_all_tokens(grpo)),
    "dr_grpo": ({}, on_all_tokens(minus_mean)),
    "rloo": ({}, on_all_tokens(rloo)),
    "opmd": ({"baseline": "logavgexp", "tau": 0.5}, on_all_tokens(opmd)),
    "reinforce": ({"gamma": 0.9}, lambda batch: [rewards_to_come(token_rewards(p), 0.9) for p in batch]),
    "reinforce_pp": (
        {"gamma": 0.9},
        whitened(lambda batch: [rewards_to_come(token_rewards(p), 0.9) for p in batch]),
    ),
    "reinforce_pp_baseline": ({}, whitened(on_all_tokens(minus_mean))),
    "multi_step_grpo": ({}, on_all_tokens(multi_step_grpo)),
    "step_return": ({"gamma": 0.9}, on_turns(step_return)),
    "gigpo": ({"gamma": 0.9, "step_weight": 0.5, "scale_by_std": True}, on_turns(gigpo)),
    "remax": ({}, remax),
}


def make_plays(seed: int) -> list[Play]:
    """Two groups of three, of unequal lengths; the second was not played greedily."""
    rng = np.random.default_rng(seed)
    plays = []
    for number in range(6):
        values = [rng.normal(size=rng.integers(1, 4)).tolist() for _ in range(rng.integers(1, 5))]
        plays.append(
            Play(
                rng.normal(size=len(values)).tolist(),
                values,
                is_truncated=bool(rng.random() < 0.5),
                group=f"lake/train/{number // 3}",
                sibling=number,
                penalties=[rng.normal(size=len(turn)).tolist() for turn in values],
                states=rng.integers(0, 3, size=len(values)).tolist(),
                greedy_return=0.7 if number < 3 else None,
            )
        )
    return plays


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
def test_penalties_count_as_the_definition_says(name: str, seed: int) -> None:
    settings, naive = NAIVE[name]
    rule: Any = ADVANTAGE_ESTIMATORS.find(name)
    batch = make_plays(seed)
    for found, expected in zip(sampled(rule(**settings), batch), naive(batch), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_both_views_of_rewards_hold_the_same_and_none_means_no_penalty() -> None:
    play = Play([1.0, 2.0], [[0.0, 0.0], [0.0]], penalties=[[-0.5, -0.25], [-0.125]])
    rows, annotations = make_batch([play], cuts=(1,))
    played = flatten_experiences(rows, annotations)
    assert played.token_rewards.tolist() == [-0.5, 0.75, 1.875]
    assert played.turn_rewards.tolist() == [0.25, 1.875]
    assert played.token_penalties.tolist() == [-0.5, -0.25, -0.125]
    bare = flatten_experiences(rows, Annotations())
    assert bare.turn_rewards.tolist() == [1.0, 2.0]
    assert bare.token_rewards.tolist() == [0.0, 1.0, 2.0]

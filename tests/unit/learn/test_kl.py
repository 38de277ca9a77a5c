"""KL in the reward: what a token is charged, and how an adaptive price moves."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.config.schema_learn import KlReward
from turnwise.learn.policy import AdaptiveKLController

from .parts import make_experience, make_model, make_trainer

BEHAVIOR = np.array([0.0, -1.0, -2.0, -0.5], dtype=np.float32)
REFERENCE = np.array([0.0, -1.5, -1.0, -0.5], dtype=np.float32)
MASK = np.array([False, True, True, True])


def charge(price: AdaptiveKLController, num_trajectories: int = 10) -> tuple[np.ndarray, float]:
    return price.charge(BEHAVIOR, REFERENCE, MASK, num_trajectories=num_trajectories)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, -1.0, 0.0]),
        ("abs", [0.5, 1.0, 0.0]),
        ("k2", [0.125, 0.5, 0.0]),
        ("k3", [np.exp(-0.5) - 1 + 0.5, np.exp(1.0) - 1 - 1.0, 0.0]),
    ],
)
def test_each_token_pays_its_own_distance(estimator: str, expected: list[float]) -> None:
    price = AdaptiveKLController(KlReward(type="reward", coef=0.1, estimator=estimator))  # type: ignore[arg-type]
    penalties, mean = charge(price)
    np.testing.assert_allclose(penalties, [0.0, *(-0.1 * d for d in expected)], atol=1e-6)
    assert mean == pytest.approx(np.mean(expected), abs=1e-6)


def test_a_fixed_price_stays_and_an_adaptive_one_follows_the_target() -> None:
    fixed = AdaptiveKLController(KlReward(type="reward", coef=0.1, estimator="abs"))
    charge(fixed)
    assert fixed.coef == 0.1
    # The mean distance is 0.5: far above 0.1 and far below 5, so the error is bounded by a fifth on both sides.
    dear = AdaptiveKLController(KlReward(type="reward", coef=0.1, estimator="abs", target=0.1, horizon=100))
    cheap = AdaptiveKLController(KlReward(type="reward", coef=0.1, estimator="abs", target=5.0, horizon=100))
    near = AdaptiveKLController(KlReward(type="reward", coef=0.1, estimator="abs", target=0.5 / 1.1, horizon=100))
    for price in (dear, cheap, near):
        charge(price, num_trajectories=10)
    assert dear.coef == pytest.approx(0.1 * (1 + 0.2 * 10 / 100))
    assert cheap.coef == pytest.approx(0.1 * (1 - 0.2 * 10 / 100))
    assert near.coef == pytest.approx(0.1 * (1 + 0.1 * 10 / 100), rel=1e-4)


def test_a_price_is_charged_before_it_adapts() -> None:
    price = AdaptiveKLController(KlReward(type="reward", coef=0.1, estimator="abs", target=0.1, horizon=10))
    first, _ = charge(price)
    second, _ = charge(price)
    np.testing.assert_allclose(second, first * 1.2, rtol=1e-5)


def test_the_learner_annotates_penalties_only_where_the_reward_pays_them() -> None:
    rng = np.random.default_rng(0)
    experiences = [make_experience(rng, number) for number in range(3)]
    assert make_trainer(kl={"type": "loss"}).annotate(experiences).token_penalties is None
    trainer = make_trainer(make_model(), kl={"type": "reward", "coef": 0.5})
    annotations = trainer.annotate(experiences)
    assert annotations.token_penalties is not None
    assert annotations.reference_logprobs is not None
    for experience, penalties, reference in zip(
        experiences, annotations.token_penalties, annotations.reference_logprobs, strict=True
    ):
        mask = experience.segment.loss_mask
        expected = np.where(mask, -0.5 * (experience.segment.behavior_logprobs - reference), 0.0)
        np.testing.assert_allclose(penalties, expected, atol=1e-5)

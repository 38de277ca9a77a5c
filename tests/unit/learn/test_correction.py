"""Importance weights for samples of another policy, and what they do to an update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from turnwise.config.schema_learn import ImportanceCorrection
from turnwise.learn.losses import PpoClip
from turnwise.learn.update import importance_weights

from .parts import gradients, make_batch, make_model, make_trainer, one_micro_batch

WIDE = PpoClip(clip_low=0.99, clip_high=99.0, dual_clip=None)
RATIOS = np.array([0.1, 0.5, 0.8, 1.0, 2.0, 5.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("how", "cap", "expected"),
    [
        ("truncated", 2.0, [0.1, 0.5, 0.8, 1.0, 2.0, 2.0]),
        ("truncated", 4.0, [0.1, 0.5, 0.8, 1.0, 2.0, 4.0]),
        ("masked", 2.1, [0.0, 0.5, 0.8, 1.0, 2.0, 0.0]),
        ("masked", 1.5, [0.0, 0.0, 0.8, 1.0, 0.0, 0.0]),
    ],
)
def test_weights_are_the_ratio_within_bounds(how: str, cap: float, expected: list[float]) -> None:
    settings = ImportanceCorrection(type=how, cap=cap)  # type: ignore[arg-type]
    weights = importance_weights(np.log(RATIOS), np.zeros(6, dtype=np.float32), settings)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def learner_logprobs(batch, model) -> np.ndarray:  # type: ignore[no-untyped-def]
    """What the model gives each sampled token now."""
    micro = one_micro_batch(batch)
    logprobs = np.zeros(len(batch.token_ids), dtype=np.float32)
    logprobs[micro.source] = make_trainer(model).actor.score(micro).logprobs.detach().numpy()
    return logprobs


def test_a_corrected_gradient_is_that_of_ratios_times_weights() -> None:
    """Right before the first optimizer step the ratio to the proximal policy is 1: grad = weight * A * grad logp."""
    batch = make_batch()
    correction = {"type": "truncated", "cap": 3.0}
    corrected = gradients(make_trainer(make_model(), correction=correction, loss=WIDE), batch)
    now = learner_logprobs(batch, make_model())
    weights = np.minimum(np.exp(now - batch.behavior_logprobs), 3.0)
    by_hand = replace(batch, behavior_logprobs=now, advantages=batch.advantages * weights)
    expected = gradients(make_trainer(make_model(), loss=WIDE), by_hand)
    for name, grad in corrected.items():
        torch.testing.assert_close(grad, expected[name], atol=1e-6, rtol=1e-4)


def test_samples_of_the_very_policy_need_no_correction() -> None:
    batch = make_batch()
    fresh = replace(batch, behavior_logprobs=learner_logprobs(batch, make_model()))
    plain = gradients(make_trainer(make_model()), fresh)
    for how in ("truncated", "masked"):
        trainer = make_trainer(make_model(), correction={"type": how})
        for name, grad in gradients(trainer, fresh).items():
            torch.testing.assert_close(grad, plain[name], atol=1e-6, rtol=1e-4)


def test_the_gap_and_the_mean_weight_are_reported() -> None:
    metrics = make_trainer(correction={"type": "masked"}).step(make_batch()).metrics
    assert metrics["learn/behavior_gap"] > 0.1
    assert 0 <= metrics["learn/importance"] <= 2.0
    plain = make_trainer().step(make_batch()).metrics
    assert "learn/importance" not in plain
    assert plain["learn/behavior_gap"] == pytest.approx(metrics["learn/behavior_gap"], rel=1e-4)

"""A price on the distance to the reference is that of the formulas, however small the price is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.audit.played import played_group
from turnwise.audit.recompute import check_penalties, check_update
from turnwise.config.load import load_settings
from turnwise.config.schema_learn import Aggregation, KlLoss, KlReward, LearnSettings
from turnwise.learn.pack import pack
from turnwise.types import Annotations, Batch, Sample, StepReport, UpdateTrace

FAR = 0.05


def priced_at(coef: float, aggregation: Aggregation = "token_mean") -> LearnSettings:
    kl = f"learn.kl={{type: loss, coef: {coef}, estimator: k3}}"
    words = ["learn.critic={type: none}", "credit={type: grpo}", "rollout.group_size=2"]
    return load_settings("frozenlake", [kl, *words, f"learn.aggregation={aggregation}"]).learn


def samples_of(away: float, *, advantage: float = 0.5) -> list[Sample]:
    """Of a policy that is so far from its reference, one way or the other."""
    samples = []
    for row in played_group():
        mask = row.segment.loss_mask
        signs = np.where(np.arange(len(mask)) % 2 == 0, 1.0, -0.5)
        zeros = np.zeros(len(mask), dtype=np.float32)
        reference = ((row.segment.behavior_logprobs - away * signs) * mask).astype(np.float32)
        advantages = np.where(mask, np.float32(advantage), np.float32(0))
        samples.append(
            Sample(experience=row, advantages=advantages, returns=zeros, values=zeros, reference_logprobs=reference)
        )
    return samples


def k3(difference: np.ndarray) -> np.ndarray:
    return (np.expm1(-difference) + difference).astype(np.float32)


def update(batch: Batch, distances: np.ndarray, settings: LearnSettings) -> StepReport:
    """What a learner tells that has made everything right but, perhaps, its distances."""
    assert isinstance(settings.kl, KlLoss)
    # Both rows have four tokens.
    weight = {"token_mean": 1 / 8, "seq_mean_token_sum": 1 / 2, "seq_mean_token_mean": 1 / 8}[settings.aggregation]
    summands = (-batch.advantages + settings.kl.coef * distances) * np.float32(weight)
    ones = np.where(batch.loss_mask, np.float32(1), np.float32(0))
    trace = UpdateTrace(
        proximal_logprobs=batch.behavior_logprobs,
        proximal_steps=np.zeros(batch.num_rows, dtype=np.int32),
        first_ratios=ones,
        last_ratios=ones,
        entropies=np.zeros_like(ones),
        is_clipped=np.zeros(len(ones), dtype=np.bool_),
        first_losses=np.where(batch.loss_mask, summands, 0).astype(np.float32),
        first_distances=np.where(batch.loss_mask, distances, 0).astype(np.float32),
    )
    return StepReport(policy_version=1, metrics={}, trace=trace)


def rounded_k3(batch: Batch) -> np.ndarray:
    """As the learner computes it, in float32."""
    difference = batch.behavior_logprobs - batch.reference_logprobs
    return np.exp(-difference) - np.float32(1) + difference


@pytest.mark.parametrize("away", [0.0, 1e-4, 0.01, FAR, 1.0])
def test_a_sound_distance_passes(away: float) -> None:
    settings = priced_at(0.001)
    batch = pack(samples_of(away))
    assert check_update(batch, update(batch, rounded_k3(batch), settings), settings, dtype="float32") == []


@pytest.mark.parametrize("away", [0.0, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("coef", [0.1, 1.0])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
def test_a_sound_distance_passes_where_it_is_all_there_is_of_the_loss(
    aggregation: Aggregation, coef: float, away: float
) -> None:
    settings = priced_at(coef, aggregation)
    batch = pack(samples_of(away, advantage=0.0))
    assert check_update(batch, update(batch, rounded_k3(batch), settings), settings, dtype="float32") == []


@pytest.mark.parametrize("away", [0.01, FAR])
def test_another_price_is_found_where_it_is_all_there_is_of_the_loss(away: float) -> None:
    batch = pack(samples_of(away, advantage=0.0))
    report = update(batch, rounded_k3(batch), priced_at(0.11))
    (breach,) = check_update(batch, report, priced_at(0.1), dtype="float32")
    assert "summand" in breach.message


@pytest.mark.parametrize("away", [0.02, FAR, 1.0])
def test_swapped_arguments_are_found_though_the_price_is_small(away: float) -> None:
    settings = priced_at(1e-6)
    batch = pack(samples_of(away))
    swapped = k3(batch.reference_logprobs - batch.behavior_logprobs)
    (breach,) = check_update(batch, update(batch, swapped, settings), settings, dtype="float32")
    assert breach.kind == "loss"
    assert "from the reference (k3)" in breach.message


@pytest.mark.parametrize(("sign", "is_sound"), [(1, True), (-1, False)])
def test_penalties_in_the_reward_are_those_of_the_price(sign: int, is_sound: bool) -> None:
    kl, samples = KlReward(type="reward", coef=0.02, estimator="k3"), samples_of(FAR)
    differences = [sign * (s.experience.segment.behavior_logprobs - s.reference_logprobs) for s in samples]
    annotations = Annotations(
        reference_logprobs=tuple(s.reference_logprobs for s in samples),
        token_penalties=tuple(-np.float32(kl.coef) * k3(difference) for difference in differences),
    )
    breaches = check_penalties(samples, annotations, kl)
    assert [breach.kind for breach in breaches] == ([] if is_sound else ["loss"])
    # Nobody outside the learner knows what an adaptive price is now.
    assert check_penalties(samples, annotations, kl.model_copy(update={"target": 0.1})) == []

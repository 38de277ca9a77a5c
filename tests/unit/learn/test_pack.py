"""Rows laid end to end, and micro-batches that hold every sampled token once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnwise.learn.pack import micro_batches, pack, pack_without_credit, token_weights
from turnwise.types import Batch, ExperienceId, Segment, TrajectoryId

from .parts import CPU, make_batch, make_experience, make_samples


def test_rows_are_laid_end_to_end() -> None:
    samples = make_samples(num_rows=3)
    batch = pack(samples)
    assert batch.num_rows == 3
    assert batch.row_lengths.tolist() == [len(s.experience.segment) for s in samples]
    for row, sample in enumerate(samples):
        part = slice(batch.row_starts[row], batch.row_starts[row + 1])
        segment = sample.experience.segment
        for name in ("token_ids", "loss_mask", "turn_ids", "behavior_logprobs"):
            assert np.array_equal(getattr(batch, name)[part], getattr(segment, name))
        for name in ("advantages", "returns", "values", "reference_logprobs"):
            assert np.array_equal(getattr(batch, name)[part], getattr(sample, name))


def test_without_credit_all_credit_is_zero() -> None:
    batch = pack_without_credit([s.experience for s in make_samples()])
    assert not any(getattr(batch, n).any() for n in ("advantages", "returns", "values", "reference_logprobs"))
    assert np.array_equal(batch.token_ids, make_batch().token_ids)


@pytest.mark.parametrize("max_tokens", [1, 12, 30, 10_000])
def test_micro_batches_hold_every_sampled_token_of_the_rows_once(max_tokens: int) -> None:
    batch = make_batch(num_rows=8)
    rows = np.array([5, 1, 6, 2])
    parts = list(micro_batches(batch, rows, max_tokens, CPU))
    wanted = np.concatenate([np.arange(batch.row_starts[r], batch.row_starts[r + 1]) for r in rows])
    wanted = np.sort(wanted[batch.loss_mask[wanted]])
    assert np.array_equal(np.sort(np.concatenate([m.source for m in parts])), wanted)
    for micro in parts:
        rows_in_it, width = micro.input_ids.shape
        assert rows_in_it * (width + 1) <= max_tokens or rows_in_it == 1
        assert micro.num_action_tokens == len(micro.source)
        assert np.array_equal(micro.targets.numpy(), batch.token_ids[micro.source])
        before = micro.input_ids.flatten()[micro.state].numpy()
        assert np.array_equal(before, batch.token_ids[micro.source - 1])
        for name in ("behavior_logprobs", "reference_logprobs", "advantages", "returns", "values"):
            assert np.array_equal(getattr(micro, name).numpy(), getattr(batch, name)[micro.source])


def test_a_larger_budget_makes_fewer_micro_batches() -> None:
    batch = make_batch(num_rows=8)
    counts = [len(list(micro_batches(batch, np.arange(8), tokens, CPU))) for tokens in (1, 30, 10_000)]
    assert counts[0] == 8
    assert counts[0] > counts[1] > counts[2] == 1


# --- weights ----------------------------------------------------------------------------------------------------------


def cut_batch() -> Batch:
    """Three rows of 4, 2 and 3 sampled tokens; the last two are parts of one trajectory."""
    samples = []
    for (sibling, segment_index), num_sampled in zip([(0, 0), (1, 0), (1, 1)], (4, 2, 3), strict=True):
        turn_ids = np.array([-1] + [0] * num_sampled, dtype=np.int32)
        segment = Segment(
            token_ids=np.arange(num_sampled + 1, dtype=np.int32),
            loss_mask=turn_ids >= 0,
            behavior_logprobs=np.zeros(num_sampled + 1, dtype=np.float32),
            turn_ids=turn_ids,
        )
        experience = replace(
            make_experience(np.random.default_rng(0)),
            id=ExperienceId(TrajectoryId(0, "lake/train/0", sibling), segment_index),
            segment=segment,
            turn_indices=np.array([0], dtype=np.int32),
            raw_rewards=np.zeros(1, dtype=np.float32),
            turn_rewards=np.zeros(1, dtype=np.float32),
            turn_states=np.zeros(1, dtype=np.uint64),
            turn_steps=np.zeros(1, dtype=np.int32),
        )
        samples.append(experience)
    return pack_without_credit(samples)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [1 / 9] * 9),
        ("seq_mean_token_sum", [1 / 2] * 9),
        ("seq_mean_token_mean", [1 / 8] * 4 + [1 / 10] * 5),
    ],
)
def test_weights_count_trajectories_and_not_rows(aggregation: Any, expected: list[float]) -> None:
    batch = cut_batch()
    weights = token_weights(batch, np.arange(3), aggregation)
    np.testing.assert_allclose(weights[batch.loss_mask], expected, rtol=1e-6)
    assert not weights[~batch.loss_mask].any()


def test_weights_are_taken_over_the_rows_of_the_minibatch() -> None:
    weights = token_weights(cut_batch(), np.array([1]), "token_mean")
    assert weights[weights > 0].tolist() == [0.5, 0.5]

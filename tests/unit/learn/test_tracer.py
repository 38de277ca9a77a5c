"""What an update says about each token is what its models and its loss computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from turnwise.learn.losses import Gspo, PpoClip, Sapo, Sft
from turnwise.learn.trainer import Trainer
from turnwise.types import Batch, UpdateTrace

from .parts import make_batch, make_trainer


class Seen:
    """A loss that remembers, per token, what the loss inside it was given and said, pass by pass."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss
        self.passes: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []

    def __call__(self, policy: Tensor, behavior: Tensor, advantages: Tensor, turns: Tensor) -> Any:
        result, details = self.loss(policy, behavior, advantages, turns)
        self.passes.append((policy.detach().clone(), behavior.clone(), details))
        return result, details


def own_samples(trainer: Trainer, batch: Batch) -> Batch:
    """The batch as if the trainer's very policy had sampled it."""
    with torch.no_grad():
        batch.behavior_logprobs[:] = trainer._logprobs(trainer.actor, batch)
    return batch


def traced(trainer: Trainer, batch: Batch) -> UpdateTrace:
    trace = trainer.step(batch).trace
    assert trace is not None
    return trace


def test_the_first_ratio_is_1_where_the_policy_is_the_one_that_sampled_and_the_last_is_not() -> None:
    trainer = make_trainer(epochs=2, micro_batch_tokens=25)
    batch = own_samples(trainer, make_batch())
    before = batch.behavior_logprobs.copy()
    trace = traced(trainer, batch)
    mask = batch.loss_mask
    np.testing.assert_allclose(trace.first_ratios[mask], 1, atol=1e-5)
    np.testing.assert_allclose(trace.proximal_logprobs, before, atol=1e-5)
    assert np.abs(trace.last_ratios[mask] - 1).min() > 1e-6
    assert not trace.proximal_steps.any()


def test_nothing_is_said_of_tokens_that_were_given() -> None:
    batch = make_batch()
    trace = traced(make_trainer(epochs=2), batch)
    for name in ("proximal_logprobs", "first_ratios", "last_ratios", "entropies", "is_clipped"):
        assert not getattr(trace, name)[~batch.loss_mask].any()
    assert (trace.entropies[batch.loss_mask] > 0).all()


@pytest.mark.parametrize("kind", [PpoClip(), Gspo()], ids=["ppo_clip", "gspo"])
def test_ratios_and_clipping_are_those_of_the_loss_in_the_first_and_the_last_epoch(kind: Any) -> None:
    trainer, batch = make_trainer(epochs=3, micro_batch_tokens=10**6), make_batch()
    trainer._loss = seen = Seen(kind)
    trace = traced(trainer, batch)
    assert len(seen.passes) == 3
    # The rows of a micro-batch are sorted by length, so that passes over all of them differ in the order of equals.
    first, last = seen.passes[0], seen.passes[-1]
    for (policy, _, details), ratios in ((first, trace.first_ratios), (last, trace.last_ratios)):
        assert sorted(ratios[batch.loss_mask]) == sorted(details["ratio"].tolist())
        assert len(policy) == batch.loss_mask.sum()
    assert sorted(trace.proximal_logprobs[batch.loss_mask]) == sorted(first[0].tolist())
    num_clipped = int(last[2]["clip_fraction"].sum())
    assert 0 < num_clipped < batch.loss_mask.sum()
    clipped = {
        ratio for ratio, c in zip(last[2]["ratio"].tolist(), last[2]["clip_fraction"].tolist(), strict=True) if c
    }
    assert set(trace.last_ratios[trace.is_clipped].tolist()) == clipped
    assert trace.is_clipped.sum() == num_clipped


def test_each_token_gets_its_own_numbers() -> None:
    """Checked against a pass of its own, in the order of the Batch."""
    trainer, batch = make_trainer(micro_batch_tokens=25), make_batch()
    with torch.no_grad():
        (micro,) = make_trainer(micro_batch_tokens=10**6)._micro_batches(batch, np.arange(batch.num_rows))
        scores = trainer.actor.score(micro)
    flat = np.zeros((2, len(batch.token_ids)), dtype=np.float32)
    flat[:, micro.source] = torch.stack([scores.logprobs, scores.entropies]).numpy()
    trace = traced(trainer, batch)
    np.testing.assert_allclose(trace.proximal_logprobs, flat[0], atol=1e-5)
    np.testing.assert_allclose(trace.entropies, flat[1], atol=1e-5)
    ratios = np.where(batch.loss_mask, np.exp(flat[0] - batch.behavior_logprobs), 0)
    np.testing.assert_allclose(trace.first_ratios, ratios, rtol=1e-4)
    np.testing.assert_array_equal(trace.last_ratios, trace.first_ratios)


def test_rows_of_later_mini_batches_say_how_far_the_policy_had_moved() -> None:
    trainer = make_trainer(epochs=2, minibatches=3)
    batch = own_samples(trainer, make_batch(num_rows=6))
    trace = traced(trainer, batch)
    assert sorted(trace.proximal_steps.tolist()) == [0, 0, 1, 1, 2, 2]
    moved = np.maximum.reduceat(np.abs(trace.first_ratios - batch.loss_mask), batch.row_starts[:-1])
    assert (moved[trace.proximal_steps == 0] < 1e-5).all()
    assert (moved[trace.proximal_steps > 0] > 1e-4).all()


def test_with_a_correction_the_proximal_policy_is_the_one_before_the_update_in_every_mini_batch() -> None:
    trainer, batch = make_trainer(minibatches=3, correction={"type": "truncated"}), make_batch()
    with torch.no_grad():
        before = trainer._logprobs(trainer.actor, batch)
    trace = traced(trainer, batch)
    np.testing.assert_array_equal(trace.proximal_logprobs, before)
    assert not trace.proximal_steps.any()


@pytest.mark.parametrize("kind", [Sft(), Sapo()], ids=["sft", "sapo"])
def test_a_loss_that_clips_nothing_has_clipped_nothing(kind: Any) -> None:
    trainer, batch = make_trainer(epochs=2), make_batch()
    trainer._loss = kind
    trace = traced(trainer, batch)
    assert not trace.is_clipped.any()
    moved = np.exp(trace.proximal_logprobs - batch.behavior_logprobs) * batch.loss_mask
    np.testing.assert_allclose(trace.first_ratios, moved, rtol=1e-4)


def test_a_loss_may_report_a_single_number() -> None:
    class Lumped:
        def __call__(self, policy: Tensor, behavior: Tensor, advantages: Tensor, turns: Tensor) -> Any:
            mean = (policy - behavior).exp().detach().mean()
            return -advantages * policy, {"ratio": mean, "clip_fraction": torch.tensor(0.5)}

    trainer, batch = make_trainer(), make_batch()
    trainer._loss = Lumped()
    trace = traced(trainer, batch)
    assert len(np.unique(trace.first_ratios[batch.loss_mask])) > 2
    assert not trace.is_clipped.any()


def test_arrays_of_a_trace_have_one_length() -> None:
    arrays = {name: np.zeros(3, dtype=np.float32) for name in ("proximal_logprobs", "first_ratios", "last_ratios")}
    with pytest.raises(ValueError, match="differ in length"):
        UpdateTrace(
            **arrays,
            entropies=np.zeros(2, dtype=np.float32),
            is_clipped=np.zeros(3, dtype=np.bool_),
            proximal_steps=np.zeros(1, dtype=np.int32),
        )

"""Imitation over the same tokens and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from turnwise.learn.policy import PolicyModel
from turnwise.learn.trainer import imitate
from turnwise.protocols import SFTConfig

from .parts import copy_of, is_equal, make_batch, make_model, make_samples, make_trainer, one_micro_batch

DEMONSTRATIONS = [s.experience for s in make_samples(num_rows=6)]


def run(actor: PolicyModel | None = None, **changes: Any) -> tuple[PolicyModel, float]:
    options: dict[str, Any] = {"steps": 8, "batch_rows": 6, "lr": 1e-2, "seed": 0, "micro_batch_tokens": 1000} | changes
    actor = actor or PolicyModel(make_model(), 1.0)
    how = SFTConfig(**{name: options.pop(name) for name in ("steps", "batch_rows", "lr")})
    told: list[tuple[int, int]] = []
    last = imitate(actor, DEMONSTRATIONS, how, on_step=lambda *done: told.append(done), **options)
    assert told == [(step, how.steps) for step in range(1, how.steps + 1)]
    return actor, last


def test_the_loss_is_the_mean_over_demonstrated_tokens_and_falls() -> None:
    actor = PolicyModel(make_model(), 1.0)
    expected = -actor.score(one_micro_batch(make_batch())).logprobs.mean().item()
    _, first = run(steps=1)
    assert first == pytest.approx(expected, rel=1e-5)
    assert run(actor)[1] < first - 0.3


def test_micro_batches_do_not_matter() -> None:
    (_, wide), (_, narrow) = run(), run(micro_batch_tokens=1)
    np.testing.assert_allclose(narrow, wide, atol=1e-3)


@pytest.mark.parametrize("change", [{"batch_rows": 2}, {"lr": 1e-3}, {"steps": 4}])
def test_every_setting_changes_the_result(change: dict[str, Any]) -> None:
    assert run()[1] != pytest.approx(run(**change)[1], abs=1e-4)


def test_the_seed_chooses_the_rows() -> None:
    first, again, other = (run(batch_rows=2, seed=seed)[1] for seed in (0, 0, 1))
    assert first == again != other


def test_the_critic_is_left_alone() -> None:
    for critic in ("value_head", "model"):
        trainer = make_trainer(critic={"type": critic})
        assert trainer.critic is not None
        before, actor = copy_of(trainer.critic), copy_of(trainer.actor.model)
        run(trainer.actor)
        assert is_equal(before, trainer.critic)
        assert not is_equal(actor, trainer.actor.model)


def test_tokens_off_the_mask_are_not_imitated() -> None:
    actor, _ = run(steps=30)
    sampled, given = [], []
    for experience in DEMONSTRATIONS:
        ids = torch.tensor(experience.segment.token_ids, dtype=torch.long)
        table = actor.model(input_ids=ids[None]).logits[0].log_softmax(-1)
        for position in range(1, len(ids)):
            logprob = table[position - 1, ids[position]].item()
            (sampled if experience.segment.loss_mask[position] else given).append(logprob)
    assert np.mean(sampled) > np.mean(given) + 1

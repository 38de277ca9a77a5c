"""Rows without a gradient cost nothing, and change nothing about the update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.config.kinds import POLICY_LOSSES
from turnwise.learn import trainer as trainer_module
from turnwise.learn.trainer import Trainer
from turnwise.learn.update import has_no_gradient_at_zero_advantage
from turnwise.types import Batch, StepReport

from .parts import copy_of, gradients, is_equal, make_batch, make_trainer


class Always:
    """A loss of a user's own that has no use for advantages."""

    def __call__(self, policy: Any, behavior: Any, advantages: Any, turns: Any) -> Any:
        return -policy, {}


class Broken(Always):
    def __call__(self, policy: Any, behavior: Any, advantages: Any, turns: Any) -> Any:
        raise ValueError("not for you")


def with_dead_rows(batch: Batch, dead: list[int]) -> Batch:
    advantages = batch.advantages.copy()
    for row in dead:
        advantages[batch.row_starts[row] : batch.row_starts[row + 1]] = 0
    return replace(batch, advantages=advantages)


def stepped(batch: Batch, **learn: Any) -> tuple[Trainer, StepReport]:
    trainer = make_trainer(**learn)
    return trainer, trainer.step(batch)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
def test_dead_rows_are_left_out_and_the_gradient_is_the_same(aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = with_dead_rows(make_batch(), [0, 3])
    _, report = stepped(batch, aggregation=aggregation)
    scored = ~np.isnan(report.trace.entropies)  # type: ignore[union-attr]
    rows = np.repeat(np.arange(batch.num_rows), batch.row_lengths)
    assert set(rows[batch.loss_mask & ~scored].tolist()) == {0, 3}
    monkeypatch.setattr(trainer_module, "has_no_gradient_at_zero_advantage", lambda *_: False)
    _, whole = stepped(batch, aggregation=aggregation)
    assert not np.isnan(whole.trace.entropies).any()  # type: ignore[union-attr]
    slow_gradients = gradients(make_trainer(aggregation=aggregation), batch)
    monkeypatch.undo()
    for name, gradient in gradients(make_trainer(aggregation=aggregation), batch).items():
        torch.testing.assert_close(gradient, slow_gradients[name], atol=1e-6, rtol=0)


def test_an_update_without_any_credit_is_skipped_and_counted() -> None:
    trainer = make_trainer(epochs=2, minibatches=2, optim={"schedule": "linear", "weight_decay": 0.1})
    trainer.step(make_batch())
    before, moments = copy_of(trainer.actor.model), repr(trainer.optimizer.state_dict()["state"])
    report = trainer.step(make_batch(1, advantages=0.0))
    assert (report.policy_version, trainer.policy_version) == (2, 2)
    assert (report.metrics["learn/skipped"], report.trace) == (1.0, None)
    assert report.metrics["learn/policy_loss"] == report.metrics["learn/grad_norm"] == 0.0
    assert "learn/entropy" not in report.metrics
    assert is_equal(before, trainer.actor.model)
    # Neither momentum nor weight decay moves it.
    assert repr(trainer.optimizer.state_dict()["state"]) == moments
    after = trainer.step(make_batch(2))
    assert after.metrics["learn/skipped"] == 0.0
    # The schedule goes by updates, made or skipped.
    assert after.metrics["learn/lr"] == pytest.approx(1e-2 * 0.8)


@pytest.mark.parametrize(
    "learn",
    [
        {"entropy_coef": 0.1},
        {"critic": {"type": "value_head"}},
        {"critic": {"type": "model"}},
        {"kl": {"type": "loss"}},
        {"ptx": {"type": "oracle"}},
    ],
)
def test_what_has_another_gradient_is_never_left_out(learn: dict[str, Any]) -> None:
    _, report = stepped(make_batch(advantages=0.0), **learn)
    assert report.metrics["learn/skipped"] == 0.0
    assert not np.isnan(report.trace.entropies).any()  # type: ignore[union-attr]


def test_a_minibatch_without_credit_makes_no_optimizer_step() -> None:
    trainer, made = make_trainer(minibatches=6), []
    trainer.optimizer.register_step_post_hook(lambda *_: made.append(1))
    trainer.step(with_dead_rows(make_batch(), [0, 1, 2, 3]))
    assert len(made) == 2


def test_losses_are_judged_by_what_they_do() -> None:
    settings = make_trainer().settings
    silent: dict[str, bool] = {}
    for name in POLICY_LOSSES.shipped:
        silent[name] = has_no_gradient_at_zero_advantage(POLICY_LOSSES.find(name)(), settings)
    assert {name for name, is_silent in silent.items() if not is_silent} == {"sft"}
    assert not has_no_gradient_at_zero_advantage(Always(), settings)
    assert not has_no_gradient_at_zero_advantage(Broken(), settings)

"""The critic's warm-up and the supervised mix: which weights they move, and which way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from turnwise.learn.pack import pack_without_credit

from .parts import copy_of, is_equal, make_batch, make_experience, make_trainer, one_micro_batch


def demonstrations(count: int = 4) -> list[Any]:
    rng = np.random.default_rng(9)
    return [make_experience(rng, number) for number in range(count)]


@pytest.mark.parametrize("critic", [{"type": "value_head"}, {"type": "model", "lr": 1e-2}])
def test_a_critic_warms_up_alone(critic: dict[str, Any]) -> None:
    trainer = make_trainer(critic=critic | {"warmup_steps": 2}, ptx={"type": "oracle"}, entropy_coef=0.1)
    trainer.supervise(demonstrations())
    actor, head = copy_of(trainer.actor.model), copy_of(trainer.critic)
    for _ in range(2):
        trainer.step(make_batch())
    assert is_equal(actor, trainer.actor.model)
    assert not is_equal(head, trainer.critic)
    trainer.step(make_batch())
    assert not is_equal(actor, trainer.actor.model)


def test_without_warm_up_the_first_step_moves_the_policy() -> None:
    trainer = make_trainer(critic={"type": "value_head"})
    actor = copy_of(trainer.actor.model)
    trainer.step(make_batch())
    assert not is_equal(actor, trainer.actor.model)


def mean_logprob(trainer: Any, experiences: list[Any]) -> float:
    with torch.no_grad():
        return float(trainer.actor.score(one_micro_batch(pack_without_credit(experiences))).logprobs.mean())


def test_the_supervised_mix_makes_demonstrations_likelier_than_the_policy_loss_alone() -> None:
    shown = demonstrations()

    def trained(**learn: Any) -> float:
        trainer = make_trainer(**learn)
        trainer.supervise(shown)
        for _ in range(3):
            trainer.step(make_batch())
        return mean_logprob(trainer, shown)

    without = trained()
    little = trained(ptx={"type": "oracle", "coef": 0.1})
    much = trained(ptx={"type": "oracle", "coef": 10.0})
    assert without < little < much


def test_the_mix_draws_as_many_rows_as_asked_for() -> None:
    def loss(batch_rows: int) -> float:
        trainer = make_trainer(ptx={"type": "oracle", "batch_rows": batch_rows})
        trainer.supervise(demonstrations())
        return trainer.step(make_batch()).metrics["learn/ptx_loss"]

    whole = make_trainer()
    everything = -mean_logprob(whole, demonstrations())
    assert loss(64) == pytest.approx(everything, rel=1e-4)
    assert loss(1) != pytest.approx(everything, rel=1e-4)

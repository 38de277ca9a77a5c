"""Updates: what they depend on, what they leave alone, what every setting does."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.config.schema_learn import OptimSettings
from turnwise.errors import LearnError
from turnwise.learn.losses import PpoClip
from turnwise.learn.optimizer import learning_rate_share
from turnwise.learn.pack import pack

from .parts import copy_of, gradients, is_equal, make_batch, make_model, make_samples, make_trainer

VALUE_HEAD = {"type": "value_head"}
MODEL_CRITIC = {"type": "model", "lr": 1e-3}
KL = {"type": "loss", "coef": 0.1}


def stir_head(trainer: Any) -> Any:
    """A new head is zero and lets no gradient through to its trunk."""
    with torch.no_grad():
        trainer.critic.head.out.weight.copy_(torch.linspace(-1, 1, 16)[None])
    return trainer


# --- what a gradient does not depend on ------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
@pytest.mark.parametrize("critic", [{"type": "none"}, VALUE_HEAD, MODEL_CRITIC])
def test_gradients_do_not_depend_on_packing_or_row_order(critic: dict[str, Any], aggregation: str) -> None:
    samples = make_samples(num_rows=7)

    def grads(order: list[int], micro_batch_tokens: int) -> dict[str, torch.Tensor]:
        # In float64, so that only a dependence can differ and not the rounding of sums in another order.
        trainer = make_trainer(
            make_model().double(),
            critic=critic,
            kl=KL,
            entropy_coef=0.02,
            micro_batch_tokens=micro_batch_tokens,
            aggregation=aggregation,
            seed=order[0],
        )
        if trainer.critic is not None:
            stir_head(trainer).critic.double()
        return gradients(trainer, pack([samples[i] for i in order]))

    whole = grads(list(range(7)), 10_000)
    assert max(g.abs().max().item() for g in whole.values()) > 1e-2
    for order, tokens in ([0, 1, 2, 3, 4, 5, 6], 1), ([6, 2, 4, 0, 1, 5, 3], 25), ([3, 6, 5, 4, 2, 1, 0], 10_000):
        for name, grad in grads(order, tokens).items():
            torch.testing.assert_close(grad, whole[name], atol=1e-6, rtol=0)


def test_every_token_weighs_the_same_whatever_row_it_is_in() -> None:
    """The loss is a mean over tokens: the metrics of a batch are token means."""
    batch = make_batch(advantages=1.0)
    metrics = make_trainer(loss=PpoClip(dual_clip=None)).step(batch).metrics
    assert metrics["learn/action_tokens"] == batch.loss_mask.sum()
    assert metrics["learn/tokens"] == len(batch.token_ids)
    assert metrics["learn/rows"] == batch.num_rows
    assert metrics["learn/ratio"] > 0
    assert metrics["learn/credit_target"] == pytest.approx(batch.returns[batch.loss_mask].mean(), abs=1e-6)


# --- the policy ------------------------------------------------------------------------------------------------------


def test_a_step_makes_good_tokens_likelier_and_bad_ones_less_likely() -> None:
    samples = make_samples(num_rows=2)
    good, bad = (
        replace(s, advantages=np.where(s.experience.segment.loss_mask, a, 0).astype(np.float32))
        for s, a in zip(samples, (1.0, -1.0), strict=True)
    )
    trainer = make_trainer(loss=PpoClip(clip_low=0.99, clip_high=99.0, dual_clip=None))

    def logprobs() -> list[float]:
        sums = []
        for sample in (good, bad):
            (micro,) = trainer._micro_batches(pack([sample]), np.arange(1))
            sums.append(trainer.actor.score(micro).logprobs.mean().item())
        return sums

    before = logprobs()
    trainer.step(pack([good, bad]))
    after = logprobs()
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_policy_version_counts_updates() -> None:
    trainer = make_trainer(epochs=2, minibatches=2)
    assert [trainer.step(make_batch()).policy_version for _ in range(3)] == [1, 2, 3]
    assert trainer.policy_version == 3


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ({}, 1),
        ({"epochs": 3}, 3),
        ({"minibatches": 2}, 2),
        ({"epochs": 2, "minibatches": 3}, 6),
        ({"minibatches": 9}, 6),
    ],
)
def test_epochs_and_minibatches_count_optimizer_steps(learn: dict[str, int], expected: int) -> None:
    trainer = make_trainer(**learn)
    steps: list[int] = []
    plain = trainer.optimizer.step
    trainer.optimizer.step = lambda *a, **k: (steps.append(1), plain(*a, **k))[1]  # type: ignore[method-assign]
    trainer.step(make_batch(num_rows=6))
    assert len(steps) == expected


def test_the_gap_to_the_behaviour_is_zero_when_its_logprobs_are_right_and_not_otherwise() -> None:
    trainer, batch = make_trainer(), make_batch()
    wrong = make_trainer().step(batch).metrics["learn/behavior_gap"]
    (micro,) = trainer._micro_batches(batch, np.arange(batch.num_rows))
    batch.behavior_logprobs[micro.source] = trainer.actor.score(micro).logprobs.detach().numpy()
    metrics = trainer.step(batch).metrics
    assert metrics["learn/behavior_gap"] < 1e-5 < wrong
    assert metrics["learn/ratio"] == pytest.approx(1, abs=1e-4)
    assert metrics["learn/approx_kl"] == pytest.approx(0, abs=1e-4)


def test_temperature_of_the_rollout_enters_the_update() -> None:
    a, b = (gradients(make_trainer(temperature=t), make_batch()) for t in (1.0, 0.5))
    assert any(not torch.allclose(a[name], b[name]) for name in a)


def test_the_same_seed_shuffles_the_same_and_another_does_not() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        trainer = make_trainer(seed=seed, minibatches=3)
        trainer.step(make_batch())
        return copy_of(trainer.actor.model)

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


# --- entropy and distance to the reference ---------------------------------------------------------------------------


def test_the_entropy_bonus_raises_entropy_and_without_it_nothing_moves() -> None:
    batch = make_batch(advantages=0.0)

    def entropies(coef: float) -> list[float]:
        trainer = make_trainer(entropy_coef=coef)
        return [trainer.step(batch).metrics["learn/entropy"] for _ in range(5)]

    assert entropies(0.1)[-1] > entropies(0.1)[0] + 0.01
    trainer = make_trainer()
    trainer.step(batch)
    assert is_equal(copy_of(make_trainer().actor.model), trainer.actor.model)


def test_there_is_no_second_model_without_kl_and_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("a model was copied")

    model = make_model()
    monkeypatch.setattr(copy, "deepcopy", refuse)
    trainer = make_trainer(model)
    trainer.refresh_reference()
    assert (trainer.reference, trainer.critic) == (None, None)
    annotations = trainer.annotate([s.experience for s in make_samples()])
    assert (annotations.values, annotations.reference_logprobs) == (None, None)
    with pytest.raises(AssertionError, match="a model was copied"):
        make_trainer(model, kl=KL)


def test_the_reference_is_frozen_until_it_is_refreshed() -> None:
    trainer = make_trainer(kl=KL)
    experiences = [s.experience for s in make_samples()]

    def reference() -> np.ndarray:
        return np.concatenate(trainer.annotate(experiences).reference_logprobs or ())

    assert trainer.reference is not None
    assert not any(p.requires_grad for p in trainer.reference.model.parameters())
    before = reference()
    trainer.step(make_batch())
    assert np.array_equal(reference(), before)
    trainer.refresh_reference()
    assert not np.allclose(reference(), before)
    (micro,) = trainer._micro_batches(make_batch(), np.arange(6))
    with torch.no_grad():
        now = trainer.actor.score(micro).logprobs.numpy()
    np.testing.assert_allclose(reference()[micro.source], now, atol=1e-5)


@pytest.mark.parametrize("estimator", ["k2", "k3", "abs"])
def test_the_kl_loss_pulls_towards_the_reference(estimator: str) -> None:
    trainer = make_trainer(kl={"type": "loss", "coef": 1.0, "estimator": estimator}, optim={"lr": 3e-3})
    with torch.no_grad():
        for p in trainer.actor.model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    samples = make_samples(advantages=0.0)
    reference = trainer.annotate([s.experience for s in samples]).reference_logprobs
    batch = make_batch(advantages=0.0)
    batch.reference_logprobs[:] = np.concatenate(reference or ())
    distances = [trainer.step(batch).metrics["learn/reference_kl"] for _ in range(12)]
    assert distances[-1] < 0.6 * distances[0]


def test_coefficient_and_estimator_of_the_kl_loss_change_gradients() -> None:
    batch = make_batch(advantages=0.0)
    base = gradients(make_trainer(kl=KL), batch)
    double = gradients(make_trainer(kl={**KL, "coef": 0.2}), batch)
    for name in base:
        torch.testing.assert_close(double[name], 2 * base[name], atol=1e-5, rtol=1e-4)
    for estimator in ("k1", "k2", "abs"):
        other = gradients(make_trainer(kl={**KL, "estimator": estimator}), batch)
        assert any(not torch.allclose(other[name], base[name], atol=1e-4) for name in base)


# --- critics ---------------------------------------------------------------------------------------------------------


def test_a_value_head_trains_trunk_and_head() -> None:
    grads = gradients(stir_head(make_trainer(critic=VALUE_HEAD)), make_batch(advantages=0.0))
    assert grads["critic.head.out.weight"].abs().max() > 1e-4
    assert grads["model.layers.0.mlp.up_proj.weight"].abs().max() > 1e-6


def test_a_critic_of_its_own_leaves_the_actor_alone() -> None:
    trainer = stir_head(make_trainer(critic=MODEL_CRITIC))
    actor, critic = copy_of(trainer.actor.model), copy_of(trainer.critic)
    trainer.step(make_batch(advantages=0.0))
    assert is_equal(actor, trainer.actor.model)
    now = trainer.critic.state_dict()
    assert not torch.equal(critic["head.out.weight"], now["head.out.weight"])
    name = "trunk.model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(critic[name], now[name])


def test_the_weight_of_a_value_head_scales_its_gradient() -> None:
    batch = make_batch(advantages=0.0)
    half, whole = (
        gradients(stir_head(make_trainer(critic={**VALUE_HEAD, "coef": coef})), batch) for coef in (0.5, 1.0)
    )
    for name in half:
        torch.testing.assert_close(whole[name], 2 * half[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("critic", [VALUE_HEAD, MODEL_CRITIC])
def test_value_clipping_is_used(critic: dict[str, Any]) -> None:
    batch = make_batch(advantages=0.0)
    free, clipped = (gradients(stir_head(make_trainer(critic={**critic, "clip": c})), batch) for c in (None, 1e-3))
    assert not torch.allclose(free["critic.head.out.weight"], clipped["critic.head.out.weight"])


def test_a_critic_of_its_own_has_its_own_learning_rate_on_the_same_schedule() -> None:
    optim = {"lr": 1e-2, "schedule": "linear"}
    trainer = make_trainer(critic={"type": "model", "lr": 4e-3}, optim=optim, steps=4)
    for left in (1.0, 0.75, 0.5):
        trainer.step(make_batch())
        actor, critic = trainer.optimizer.param_groups
        assert actor["lr"] == pytest.approx(1e-2 * left)
        assert critic["lr"] == pytest.approx(4e-3 * left)
    assert len(make_trainer(critic=VALUE_HEAD).optimizer.param_groups) == 1


@pytest.mark.parametrize("critic", [VALUE_HEAD, {"type": "model", "lr": 1e-2}])
def test_a_critic_learns_its_returns(critic: dict[str, Any]) -> None:
    trainer, batch = make_trainer(critic=critic), make_batch(advantages=0.0, returns=0.7, values=0.0)
    losses = [trainer.step(batch).metrics["learn/value_loss"] for _ in range(25)]
    assert losses[0] == pytest.approx(0.5 * 0.7**2, rel=1e-4)
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize("critic", [VALUE_HEAD, MODEL_CRITIC])
def test_annotations_are_zero_off_the_mask_and_do_not_depend_on_micro_batches(critic: dict[str, Any]) -> None:
    experiences = [s.experience for s in make_samples()]
    wide, narrow = (
        stir_head(make_trainer(critic=critic, kl=KL, micro_batch_tokens=n)).annotate(experiences) for n in (10_000, 1)
    )
    assert wide.values is not None
    assert wide.reference_logprobs is not None
    for i, experience in enumerate(experiences):
        mask = experience.segment.loss_mask
        assert not wide.values[i][~mask].any()
        assert not wide.reference_logprobs[i][~mask].any()
        assert (wide.reference_logprobs[i][mask] < 0).all()
        np.testing.assert_allclose(wide.values[i], narrow.values[i], atol=1e-5)
        np.testing.assert_allclose(wide.reference_logprobs[i], narrow.reference_logprobs[i], atol=1e-5)


def test_explained_variance() -> None:
    batch = make_batch()
    batch.values[:] = batch.returns
    assert make_trainer().step(batch).metrics["learn/explained_variance"] == pytest.approx(1)
    batch.values[:] = 0
    assert make_trainer().step(batch).metrics["learn/explained_variance"] == pytest.approx(0, abs=1e-6)


# --- optimizer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optim", "step", "expected"),
    [
        ({}, 0, 1.0),
        ({}, 99, 1.0),
        ({"warmup_steps": 4}, 0, 0.25),
        ({"warmup_steps": 4}, 2, 0.75),
        ({"warmup_steps": 4}, 7, 1.0),
        ({"schedule": "linear"}, 0, 1.0),
        ({"schedule": "linear"}, 5, 0.5),
        ({"schedule": "linear"}, 10, 0.0),
        ({"schedule": "linear"}, 12, 0.0),
        ({"schedule": "linear", "final_lr_share": 0.2}, 5, 0.6),
        ({"schedule": "linear", "final_lr_share": 0.2}, 10, 0.2),
        ({"schedule": "cosine"}, 0, 1.0),
        ({"schedule": "cosine"}, 5, 0.5),
        ({"schedule": "cosine", "final_lr_share": 0.2}, 2, 0.2 + 0.8 * 0.9045084971874737),
        ({"schedule": "cosine", "final_lr_share": 0.2}, 10, 0.2),
        ({"schedule": "linear", "warmup_steps": 4}, 1, 0.5 * 0.9),
    ],
)
def test_learning_rate_schedule(optim: dict[str, Any], step: int, expected: float) -> None:
    assert learning_rate_share(OptimSettings(**optim), step, 10) == pytest.approx(expected)


def test_the_schedule_reaches_the_optimizer_and_the_metrics() -> None:
    trainer = make_trainer(optim={"lr": 1e-2, "schedule": "linear", "warmup_steps": 2}, steps=4)
    rates = [trainer.step(make_batch()).metrics["learn/lr"] for _ in range(4)]
    assert rates == pytest.approx([0.5e-2, 0.75e-2, 0.5e-2, 0.25e-2])


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_reported() -> None:
    def norm(grads: dict[str, torch.Tensor]) -> float:
        return sum(float(g.square().sum()) for g in grads.values()) ** 0.5

    free = norm(gradients(make_trainer(), make_batch()))
    limit = free / 10
    assert norm(gradients(make_trainer(optim={"grad_clip": limit}), make_batch())) == pytest.approx(limit, rel=1e-3)
    report = make_trainer(optim={"grad_clip": limit}).step(make_batch())
    assert report.metrics["learn/grad_norm"] == pytest.approx(free, rel=1e-4)


@pytest.mark.parametrize("optim", [{"beta1": 0.5}, {"beta2": 0.5}, {"weight_decay": 0.5}, {"lr": 2e-2}])
def test_every_setting_of_the_optimizer_changes_the_weights(optim: dict[str, float]) -> None:
    def weights(**learn: Any) -> torch.Tensor:
        trainer = make_trainer(**learn)
        for seed in range(3):
            trainer.step(make_batch(seed))
        return trainer.actor.model.model.layers[0].mlp.up_proj.weight

    assert not torch.allclose(weights(), weights(optim=optim), atol=1e-5)


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_not_finite_stops_the_run_and_leaves_the_weights() -> None:
    trainer = make_trainer(critic=VALUE_HEAD)
    with torch.no_grad():
        trainer.actor.model.model.layers[0].mlp.up_proj.weight.fill_(1e38)
    actor, critic = copy_of(trainer.actor.model), copy_of(trainer.critic)
    with pytest.raises(LearnError, match=r"gradient norm is (nan|inf).*weights are left as they were"):
        trainer.step(make_batch())
    assert is_equal(actor, trainer.actor.model)
    assert is_equal(critic, trainer.critic)
    assert trainer.policy_version == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_advantages_that_are_not_finite_are_named_and_not_blamed_on_the_learning_rate(bad: float) -> None:
    trainer = make_trainer(critic=VALUE_HEAD)
    actor = copy_of(trainer.actor.model)
    with pytest.raises(LearnError, match=rf"advantages that are not finite.*{bad}.*too large for float32"):
        trainer.step(make_batch(advantages=bad))
    assert is_equal(actor, trainer.actor.model)
    assert trainer.policy_version == 0


def test_a_batch_without_sampled_tokens_is_refused() -> None:
    batch = make_batch()
    batch.loss_mask[:] = False
    with pytest.raises(LearnError, match="no sampled tokens"):
        make_trainer().step(batch)


def test_a_minibatch_without_sampled_tokens_is_passed_over() -> None:
    """One row of two has nothing to learn from; the other is learnt."""
    batch = make_batch(num_rows=2)
    batch.loss_mask[: batch.row_starts[1]] = False
    trainer = make_trainer(minibatches=2)
    before = copy_of(trainer.actor.model)
    metrics = trainer.step(batch).metrics
    assert not is_equal(before, trainer.actor.model)
    assert all(np.isfinite(value) for value in metrics.values())


def test_weights_are_the_actors() -> None:
    trainer = make_trainer(make_model(3), critic=VALUE_HEAD)
    assert trainer.weights().keys() == make_model().state_dict().keys()
    trainer.step(make_batch())
    assert torch.equal(trainer.weights()["model.norm.weight"], trainer.actor.model.model.norm.weight)

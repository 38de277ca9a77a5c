"""Adapters: what is trained, what is not, and that reference and published weights are exactly the right policies."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.engine.tiny_models import make_model as make_family
from tests.unit.learn.parts import (
    copy_of,
    is_equal,
    make_batch,
    make_model,
    make_samples,
    make_trainer,
    one_micro_batch,
)
from tests.unit.learn.test_policy import full_table, in_order
from turnwise.config.schema import Lora
from turnwise.errors import ConfigError
from turnwise.learn.policy import PolicyModel
from turnwise.learn.trainer import imitate
from turnwise.models.adapters import MergedWeights, adapter_off, add_adapter, fold_adapter
from turnwise.protocols import SFTConfig

LORA = {"lora": {"type": "lora", "rank": 4}}
KL = {"type": "loss", "coef": 0.1}
EXPERIENCES = [s.experience for s in make_samples()]


def adapted(family: str | None = None, seed: int = 0, **lora: Any) -> Any:
    """A model with adapters that have learnt something; in float64, so that only a mistake can differ."""
    model = (make_family(family) if family else make_model()).double()
    add_adapter(model, Lora.model_validate({"type": "lora", **lora}), seed=seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@torch.no_grad()
def logprobs(model: Any) -> torch.Tensor:
    return PolicyModel(model, 1.0).score(one_micro_batch(make_batch())).logprobs


def reference_logprobs(trainer: Any) -> np.ndarray:
    return np.concatenate(trainer.annotate(EXPERIENCES).reference_logprobs)


def base_reference() -> np.ndarray:
    return reference_logprobs(make_trainer(kl=KL))


# --- what is trained -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["none", "value_head", "model"])
def test_only_adapters_and_value_heads_are_trained(critic: str) -> None:
    trainer = make_trainer(critic={"type": critic}, model_settings=LORA)
    modules = {"actor": trainer.actor.model} | ({"critic": trainer.critic} if trainer.critic is not None else {})
    before = {name: copy_of(module) for name, module in modules.items()}
    optimized = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    for name, module in modules.items():
        for key, parameter in module.named_parameters():
            assert (id(parameter) in optimized) == ("lora_" in key or key.startswith("head.")), (name, key)
    # A new head and a new adapter are zero and let a gradient through from the second step on.
    for step in range(3):
        trainer.step(make_batch(step))
    for name, module in modules.items():
        for key, tensor in module.state_dict().items():
            is_trained = "lora_" in key or key.startswith("head.")
            assert torch.equal(before[name][key], tensor) != is_trained, (name, key)


def test_a_new_adapter_changes_nothing_and_comes_from_the_seed_alone() -> None:
    state = torch.get_rng_state()
    models = [make_model() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        add_adapter(model, Lora(type="lora"), seed=seed)
        assert torch.equal(logprobs(model), logprobs(make_model()))
    assert torch.equal(torch.get_rng_state(), state)
    assert is_equal(copy_of(models[0]), models[1])
    assert not is_equal(copy_of(models[0]), models[2])


def test_every_setting_changes_what_is_learnt() -> None:
    def after_two_steps(**lora: Any) -> torch.Tensor:
        trainer = make_trainer(model_settings={"lora": {"type": "lora", **lora}})
        for step in range(2):
            trainer.step(make_batch(step))
        return logprobs(trainer.actor.model)

    results = [after_two_steps(**lora) for lora in ({}, {"rank": 2}, {"alpha": 4}, {"target_modules": ["q_proj"]})]
    for i, result in enumerate(results):
        assert all(not torch.allclose(result, other, atol=1e-4) for other in results[:i])


def test_targets_are_the_layers_that_are_named() -> None:
    def layers(**lora: Any) -> set[str]:
        names = [name for name, _ in adapted(**lora).named_parameters() if "lora_A" in name]
        return {name.split(".lora_A")[0].rsplit(".", 1)[-1] for name in names}

    assert layers(target_modules=["q_proj", "mlp.up_proj"]) == {"q_proj", "up_proj"}
    everything = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert layers() == everything


@pytest.mark.parametrize("unknown", ["qproj", "lm_head", "embed_tokens", "proj"])
def test_an_unknown_target_is_refused_and_the_known_ones_are_named(unknown: str) -> None:
    expected = rf"model.lora.target_modules: '{unknown}' given; LlamaForCausalLM .* Choose from down_proj, .*, v_proj"
    with pytest.raises(ConfigError, match=expected):
        adapted(target_modules=["q_proj", unknown])


# --- the published weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2"])
def test_merged_weights_are_those_of_a_plain_model_with_the_same_policy(family: str) -> None:
    model = adapted(family)
    before = copy_of(model)
    merged = MergedWeights(model)
    assert is_equal(before, model)
    plain = make_family(family).double()
    assert not torch.allclose(logprobs(plain), logprobs(model), atol=1e-2)
    plain.load_state_dict(merged)
    torch.testing.assert_close(logprobs(plain), logprobs(model), atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_scores_of_an_adapted_model_are_those_of_its_own_logits(family: str) -> None:
    model, batch = adapted(family), make_batch()
    micro = one_micro_batch(batch)
    scores = PolicyModel(model, 1.0).score(micro)
    found = in_order(micro, scores.logprobs).float()
    torch.testing.assert_close(found, full_table(model, batch)[0], atol=1e-5, rtol=0)


def test_the_learner_publishes_the_policy_that_it_trains() -> None:
    trainer, plain = make_trainer(model_settings=LORA), make_model()
    for step in range(5):
        trainer.step(make_batch(step))
        parameters = copy_of(trainer.actor.model)
        plain.load_state_dict(dict(trainer.weights()))
        assert is_equal(parameters, trainer.actor.model)
    torch.testing.assert_close(logprobs(plain), logprobs(trainer.actor.model), atol=1e-5, rtol=0)
    batch = make_batch()
    batch.behavior_logprobs[one_micro_batch(batch).source] = logprobs(plain).numpy()
    assert trainer.step(batch).metrics["learn/behavior_gap"] < 1e-5


# --- the reference ---------------------------------------------------------------------------------------------------


def test_the_reference_is_the_untouched_base_and_no_second_model(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, model, plain = base_reference(), make_model(), copy.deepcopy

    def refuse(original: Any, *rest: Any) -> Any:
        assert not isinstance(original, nn.Module), "a model was copied"
        return plain(original, *rest)

    monkeypatch.setattr(copy, "deepcopy", refuse)
    with pytest.raises(AssertionError, match="a model was copied"):
        make_trainer(make_model(), kl=KL)
    trainer = make_trainer(model, kl=KL, model_settings=LORA)
    for step in range(4):
        trainer.step(make_batch(step))
    np.testing.assert_allclose(reference_logprobs(trainer), expected, atol=1e-6)
    moved = (logprobs(trainer.actor.model) - logprobs(make_model())).abs().max()
    assert moved > 1e-2
    # Asking the reference leaves adapters on and trained.
    assert trainer.step(make_batch(4)).metrics["learn/grad_norm"] > 0
    assert (logprobs(trainer.actor.model) - logprobs(make_model())).abs().max() != moved


def test_an_error_inside_leaves_the_adapters_on() -> None:
    model = adapted()
    on = logprobs(model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    with adapter_off(model):
        assert torch.equal(logprobs(model), logprobs(make_model().double()))

    def fail() -> None:
        with adapter_off(model):
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert torch.equal(logprobs(model), on)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == trained


def test_after_a_warm_start_the_reference_is_the_policy_of_that_moment() -> None:
    trainer = make_trainer(kl=KL, model_settings=LORA)
    untouched = reference_logprobs(trainer)
    how = SFTConfig(steps=6, batch_rows=6, lr=1e-2)
    imitate(trainer.actor, EXPERIENCES, how, seed=0, micro_batch_tokens=1000)
    trainer.step(make_batch())
    warm = logprobs(trainer.actor.model)
    trainer.refresh_reference()
    micro = one_micro_batch(make_batch())
    np.testing.assert_allclose(reference_logprobs(trainer)[micro.source], warm.numpy(), atol=1e-5)
    assert np.abs(reference_logprobs(trainer) - untouched).max() > 0.1
    # Nothing has been learnt since: adapters are new, and so is what the optimizer remembers.
    assert torch.equal(logprobs(trainer.actor.model), trainer.reference.score(micro).logprobs)  # type: ignore[union-attr]
    assert not trainer.optimizer.state
    frozen = reference_logprobs(trainer)
    for step in range(3):
        trainer.step(make_batch(step))
    assert np.array_equal(reference_logprobs(trainer), frozen)
    assert (logprobs(trainer.actor.model) - warm).abs().max() > 1e-2


def test_without_a_reference_nothing_is_folded() -> None:
    trainer = make_trainer(model_settings=LORA)
    trainer.step(make_batch())
    before = copy_of(trainer.actor.model)
    trainer.refresh_reference()
    assert is_equal(before, trainer.actor.model)
    assert not trainer.is_base_folded


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_folding_keeps_the_policy_and_starts_adapters_from_the_seed(family: str) -> None:
    models = [adapted(family) for _ in range(3)]
    before = logprobs(models[0])
    for model, seed in zip(models, (1, 1, 2), strict=True):
        fold_adapter(model, seed=seed)
        torch.testing.assert_close(logprobs(model), before, atol=1e-9, rtol=0)
        with adapter_off(model):
            torch.testing.assert_close(logprobs(model), before, atol=1e-9, rtol=0)
    assert is_equal(copy_of(models[0]), models[1])
    assert not is_equal(copy_of(models[0]), models[2])

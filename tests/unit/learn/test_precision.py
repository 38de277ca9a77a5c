"""bfloat16 changes rounding alone, and gradient checkpointing changes memory alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from turnwise.errors import ModelError
from turnwise.learn.policy import PolicyModel
from turnwise.models.load import cast_parameters, checkpoint_gradients

from .parts import VOCAB, gradients, make_batch, make_model, make_trainer, one_micro_batch
from .test_policy import full_table, in_order

HALF = {"dtype": "bfloat16"}
LESS_MEMORY = {"gradient_checkpointing": True}
LORA = {"lora": {"type": "lora", "rank": 2}}
KL = {"type": "loss", "coef": 0.1}
TOLERANCE = 0.1
"""Of a log-prob: bfloat16 keeps 8 bits, so logits of up to 8, as these models have, are rounded by up to 0.02 each."""


# --- bfloat16 --------------------------------------------------------------------------------------------------------


def test_the_learner_computes_in_bfloat16_over_float32_weights() -> None:
    trainer = make_trainer(model_settings=HALF, critic={"type": "model"}, kl=KL)
    micro = one_micro_batch(make_batch())
    exact = make_trainer().actor.score(micro)
    scores = trainer.actor.score(micro)
    assert (scores.logprobs - exact.logprobs).abs().max() < TOLERANCE
    assert not torch.equal(scores.logprobs, exact.logprobs)
    assert (scores.logprobs.dtype, scores.entropies.dtype) == (torch.float32, torch.float32)
    trainer.step(make_batch(0))
    metrics = trainer.step(make_batch(1)).metrics
    assert metrics["learn/behavior_gap"] > 0
    assert trainer.critic is not None
    assert trainer.critic(micro, scores.hidden).dtype == torch.float32
    for module in (trainer.actor.model, trainer.critic):
        assert all(p.dtype == torch.float32 for p in module.parameters())
        assert all(p.grad.dtype == torch.float32 for p in module.parameters() if p.grad is not None)
    assert all(tensor.dtype == torch.float32 for tensor in trainer.weights().values())


def test_what_adapters_stand_beside_is_held_in_bfloat16() -> None:
    trainer = make_trainer(model_settings=HALF | LORA, critic={"type": "model"}, kl=KL)
    for step in range(2):
        trainer.step(make_batch(step))
    assert trainer.critic is not None
    for module in (trainer.actor.model, trainer.critic):
        types = {(p.requires_grad, p.dtype) for p in module.parameters()}
        assert types == {(True, torch.float32), (False, torch.bfloat16)}
        assert all(b.dtype == torch.float32 for b in module.buffers())
        assert all(p.grad.dtype == torch.float32 for p in module.parameters() if p.grad is not None)


def test_adapters_beside_bfloat16_are_merged_with_one_rounding() -> None:
    plain, half = (make_trainer(model_settings=LORA | more) for more in ({}, HALF))
    for trainer in (plain, half):
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                nn.init.constant_(parameter, 0.01)
    for name, tensor in half.weights().items():
        base = make_model().state_dict()[name].to(torch.bfloat16).float()
        exact = base + (plain.weights()[name] - make_model().state_dict()[name])
        torch.testing.assert_close(tensor.float(), exact.to(torch.bfloat16).float(), rtol=2**-7, atol=1e-6)
        assert tensor.dtype == torch.bfloat16


def test_gradients_of_adapters_beside_bfloat16_point_the_same_way() -> None:
    exact, half = (gradients(make_trainer(model_settings=LORA | more), make_batch()) for more in ({}, HALF))
    a, b = (torch.cat([g.flatten() for g in grads.values()]) for grads in (exact, half))
    assert torch.cosine_similarity(a, b, dim=0) > 0.99


def test_the_critic_computes_in_bfloat16_and_its_head_in_float32() -> None:
    micro = one_micro_batch(make_batch())
    values = []
    for settings in ({}, HALF):
        trainer = make_trainer(model_settings=settings, critic={"type": "model"})
        assert trainer.critic is not None
        nn.init.constant_(trainer.critic.head.out.weight, 0.1)
        values.append(trainer.critic(micro, torch.empty(0)))
    assert not torch.equal(values[0], values[1])
    torch.testing.assert_close(values[1], values[0], atol=TOLERANCE, rtol=0)


def test_the_reference_is_held_in_bfloat16_with_exact_positions() -> None:
    trainer = make_trainer(model_settings=HALF, kl=KL)
    assert isinstance(trainer.reference, PolicyModel)
    model = trainer.reference.model
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert all(b.dtype == torch.float32 for b in model.buffers())
    micro = one_micro_batch(make_batch())
    found, exact = trainer.reference.score(micro).logprobs, make_trainer().actor.score(micro).logprobs
    assert (found - exact).abs().max() < TOLERANCE
    trainer.refresh_reference()
    assert next(trainer.reference.model.parameters()).dtype == torch.bfloat16


def test_gradients_in_bfloat16_point_the_same_way() -> None:
    exact, half = (gradients(make_trainer(model_settings=s), make_batch()) for s in ({}, HALF))
    a, b = (torch.cat([g.flatten() for g in grads.values()]) for grads in (exact, half))
    assert not torch.equal(a, b)
    assert torch.cosine_similarity(a, b, dim=0) > 0.999


def test_casting_keeps_tied_weights_tied() -> None:
    model = make_model()
    cast_parameters(model, torch.bfloat16)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.lm_head.weight.dtype == torch.bfloat16


# --- gradient checkpointing ------------------------------------------------------------------------------------------


def saved_bytes(trainer: Any, batch: Any) -> int:
    """What a forward pass keeps for the backward pass, weights not counted."""
    weights = {p.data_ptr() for p in trainer.actor.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scores = trainer.actor.score(one_micro_batch(batch))
    scores.logprobs.sum().backward()
    return sum(kept.values())


@pytest.mark.parametrize("more", [{}, LORA, HALF])
def test_checkpointing_keeps_gradients_and_saves_activations(more: dict[str, Any]) -> None:
    learn: dict[str, Any] = {"critic": {"type": "model"}, "kl": KL}
    plain, checkpointed = (make_trainer(model_settings=more | settings, **learn) for settings in ({}, LESS_MEMORY))
    for trainer in (plain, checkpointed):
        nn.init.constant_(trainer.critic.head.out.weight, 0.1)  # type: ignore[union-attr]
    assert saved_bytes(checkpointed, make_batch()) < 0.6 * saved_bytes(plain, make_batch())
    expected, found = gradients(plain, make_batch()), gradients(checkpointed, make_batch())
    assert sum(g.abs().max() > 1e-4 for g in expected.values()) > 10
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=0)


def test_the_critic_is_checkpointed_too() -> None:
    def saved(settings: dict[str, Any]) -> int:
        critic = make_trainer(model_settings=settings, critic={"type": "model"}).critic
        assert critic is not None
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t):
            critic(one_micro_batch(make_batch()), torch.empty(0))
        return sum(sizes)

    assert saved(LESS_MEMORY) < 0.6 * saved({})


def _gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.5, attn_pdrop=0.5)
    )


def _opt() -> Any:
    """Its layers ask for their own mode to decide about dropout."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            word_embed_proj_dim=16,
            ffn_dim=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            dropout=0.5,
            pad_token_id=0,
        )
    )


@pytest.mark.parametrize("make", [_gpt2, _opt])
def test_checkpointed_layers_have_no_dropout(make: Any) -> None:
    torch.manual_seed(0)
    model, batch = make().eval(), make_batch()
    expected = full_table(model, batch)[0]
    expected.mean().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    micro = one_micro_batch(batch)
    scores = make_trainer(model, model_settings=LESS_MEMORY).actor.score(micro)
    torch.testing.assert_close(in_order(micro, scores.logprobs), expected, atol=1e-5, rtol=0)
    scores.logprobs.mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], atol=1e-6, rtol=0)


def test_a_model_without_such_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(model, "supports_gradient_checkpointing", False)
    with pytest.raises(ModelError, match=r"model.gradient_checkpointing is true and LlamaForCausalLM has no layers"):
        checkpoint_gradients(model)

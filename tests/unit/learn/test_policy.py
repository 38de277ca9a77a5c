"""Scores at sampled tokens against the model's own full table of logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from turnwise.learn import policy as head_module
from turnwise.learn.policy import ModelCritic, PolicyModel, TrunkCritic
from turnwise.types import Batch

from .parts import VOCAB, ShapeRecorder, make_batch, make_model, make_trainer, one_micro_batch


def full_table(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies at the sampled tokens in the batch's order, row by row and without padding."""
    logprobs, entropies = [], []
    for row in range(batch.num_rows):
        part = slice(batch.row_starts[row], batch.row_starts[row + 1])
        ids = torch.tensor(batch.token_ids[part], dtype=torch.long)
        table = (model(input_ids=ids[None]).logits[0].float() / temperature).log_softmax(-1)
        for position in batch.loss_mask[part].nonzero()[0]:
            logprobs.append(table[position - 1, ids[position]])
            entropies.append(-(table[position - 1].exp() * table[position - 1]).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def in_order(micro: Any, per_token: torch.Tensor) -> torch.Tensor:
    return per_token[torch.as_tensor(micro.source).argsort()]


@pytest.mark.parametrize("max_logits", [None, 3 * VOCAB, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_scores_and_gradients_equal_those_of_the_full_logits(
    max_logits: int | None, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if max_logits is not None:
        monkeypatch.setattr(head_module, "MAX_LOGITS", max_logits)
    model, batch = make_model(), make_batch()
    micro = one_micro_batch(batch)
    scores = PolicyModel(model, temperature).score(micro)
    logprobs, entropies = full_table(model, batch, temperature)
    torch.testing.assert_close(in_order(micro, scores.logprobs), logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(in_order(micro, scores.entropies), entropies, atol=1e-5, rtol=0)

    def grads(loss: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    found = grads(scores.logprobs.mean() + 0.3 * scores.entropies.mean())
    expected = grads(logprobs.mean() + 0.3 * entropies.mean())
    assert any(g.abs().max() > 1e-3 for g in expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("is_entropy_used", [True, False])
def test_no_tensor_holds_the_logits_of_all_tokens_when_they_are_many(
    is_entropy_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_module, "MAX_LOGITS", 4 * VOCAB)
    micro, policy = one_micro_batch(make_batch()), PolicyModel(make_model(), 1.0)
    with ShapeRecorder() as recorder:
        scores = policy.score(micro)
        (scores.logprobs + (scores.entropies if is_entropy_used else 0)).sum().backward()
    weight = (16, VOCAB)
    tables = {shape[0] for shape in recorder.shapes - {weight} if shape[1:] == (VOCAB,)}
    assert max(tables) == 4
    assert micro.num_action_tokens > 4


def test_temperature_enters_the_logprobs() -> None:
    micro = one_micro_batch(make_batch())
    cold, hot = (PolicyModel(make_model(), t).score(micro) for t in (0.5, 2.0))
    assert (cold.entropies < hot.entropies).all()
    assert not torch.allclose(cold.logprobs, hot.logprobs)


def test_softcapped_logits_are_those_of_the_model() -> None:
    config = Gemma2Config(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        final_logit_softcapping=0.5,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model, batch = Gemma2ForCausalLM(config).eval(), make_batch()
    micro = one_micro_batch(batch)
    scores = PolicyModel(model, 1.0).score(micro)
    torch.testing.assert_close(in_order(micro, scores.logprobs), full_table(model, batch)[0], atol=1e-5, rtol=0)


def test_a_model_with_dropout_is_trained_as_it_samples() -> None:
    """Dropout would make the learner's log-probs those of another policy than the one that sampled."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.5)
    model, batch = GPT2LMHeadModel(config).eval(), make_batch()
    expected = full_table(model, batch)[0].detach()
    micro = one_micro_batch(batch)
    scores = make_trainer(model).actor.score(micro)
    torch.testing.assert_close(in_order(micro, scores.logprobs).detach(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("critic_class", [TrunkCritic, ModelCritic])
def test_a_new_critic_says_zero_and_reads_the_state_before_each_token(critic_class: Any) -> None:
    model, batch = make_model(), make_batch()
    micro = one_micro_batch(batch)
    critic, hidden = critic_class(model), PolicyModel(model, 1.0).states(micro)
    assert not critic(micro, hidden).any()
    with torch.no_grad():
        critic.head.out.weight.normal_()
        critic.head.out.bias.fill_(0.5)
    expected = []
    for row in range(batch.num_rows):
        part = slice(batch.row_starts[row], batch.row_starts[row + 1])
        states = model.model(input_ids=torch.tensor(batch.token_ids[part], dtype=torch.long)[None]).last_hidden_state[0]
        expected += [critic.head.out(states[p - 1]).squeeze() for p in batch.loss_mask[part].nonzero()[0]]
    found = in_order(micro, critic(micro, hidden))
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)

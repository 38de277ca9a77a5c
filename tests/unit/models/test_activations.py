"""What a forward pass keeps, against what autograd really saves, and what `auto` makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.unit.learn.parts import (
    ShapeRecorder,
    copy_of,
    gradients,
    is_equal,
    make_batch,
    make_experience,
    make_trainer,
    one_micro_batch,
)
from turnwise.learn.pack import pack_without_credit
from turnwise.models.activations import LayerShape, TokenBytes, bytes_per_token, choose_micro_batch

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES = [(LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)]
LORA = {"lora": {"type": "lora"}}
EACH = TokenBytes(kept=1000, checkpointed=100, terms="", checkpointed_terms="")


def make(family: Any, num_layers: int = 2, **sizes: Any) -> Any:
    config, model = family
    return model(config(**(SIZES | sizes), num_hidden_layers=num_layers)).eval()


def saved_bytes(model: Any, num_tokens: int) -> int:
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.ones(1, num_tokens, dtype=torch.long), use_cache=False)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("family", FAMILIES, ids=["llama", "qwen2"])
@pytest.mark.parametrize("held", [{}, LORA], ids=["full", "lora"])
def test_the_bytes_of_a_layer_are_those_that_autograd_keeps(family: Any, held: dict[str, Any]) -> None:
    def of(num_layers: int) -> tuple[int, int]:
        model = make(family, num_layers)
        shape = LayerShape.of(model.config)
        assert shape is not None
        make_trainer(model, model_settings=held | {"gradient_checkpointing": False})
        each = bytes_per_token(shape, is_frozen=bool(held), dtype=torch.float32)
        return saved_bytes(model, 50), 50 * each.kept

    (found_1, told_1), (found_3, told_3) = of(1), of(3)
    assert (told_3 - told_1) == pytest.approx(found_3 - found_1, rel=0.12)


def test_auto_takes_as_many_tokens_as_the_budget_holds_and_checkpoints_what_is_longer() -> None:
    size = choose_micro_batch(EACH, 500_000, micro_batch_tokens="auto", gradient_checkpointing="auto")
    assert (size.micro_batch_tokens, size.checkpoint_above) == (500, 500)
    assert not size.is_checkpointed(500)
    assert size.is_checkpointed(501)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"budget": 10**9}, (8192, 10**6)),
        ({"budget": 90_000}, (900, 0)),
        ({"gradient_checkpointing": True}, (5000, 0)),
        ({"gradient_checkpointing": False}, (500, None)),
        ({"micro_batch_tokens": 77}, (77, 500)),
        ({"each": None}, (8192, None)),
    ],
)
def test_each_choice_has_its_size(given: dict[str, Any], expected: tuple[int, int | None]) -> None:
    chosen = {"micro_batch_tokens": "auto", "gradient_checkpointing": "auto"} | given
    size = choose_micro_batch(chosen.pop("each", EACH), chosen.pop("budget", 500_000), **chosen)
    assert (size.micro_batch_tokens, size.checkpoint_above) == expected


def test_a_pass_above_the_budget_is_checkpointed_and_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch()
    plain = gradients(make_trainer(), batch)
    # So small that every micro-batch of several rows is above it.
    monkeypatch.setattr("turnwise.models.activations.activation_budget", lambda *_, **__: 1)
    trainer = make_trainer(micro_batch_tokens=10**6)
    layers = list(trainer.model.model.layers)
    found = gradients(trainer, batch)
    assert all(layer.training for layer in layers)
    with torch.no_grad():
        trainer.actor.score(one_micro_batch(batch))
    assert not any(layer.training for layer in layers)
    for name, expected in plain.items():
        torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-5)


def test_gradients_are_gone_after_an_update() -> None:
    trainer = make_trainer()
    before = copy_of(trainer.model)
    trainer.step(make_batch())
    assert not is_equal(before, trainer.model)
    assert all(p.grad is None for p in trainer.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=["llama", "qwen2"])
def test_a_context_of_32_000_tokens_makes_no_quadratic_tensor(family: Any) -> None:
    length = 32_000
    model = make(family, 1, hidden_size=8, intermediate_size=16, num_attention_heads=1, num_key_value_heads=1,
                 max_position_embeddings=length)  # fmt: skip
    trainer = make_trainer(model, model_settings={"gradient_checkpointing": True})
    micro = one_micro_batch(long_batch(length))
    with ShapeRecorder() as recorder:
        trainer.actor.score(micro).logprobs.sum().backward()
    sizes = [torch.Size(shape).numel() for shape in recorder.shapes]
    assert max(sizes) >= length
    assert max(sizes) <= length * 2 * 64
    assert not any(sum(size >= length - 1 for size in shape) > 1 for shape in recorder.shapes)


def long_batch(length: int) -> Any:
    experience = make_experience(np.random.default_rng(0), length=length)
    experience.segment.loss_mask[: length - 16] = False
    return pack_without_credit([experience])


def test_a_large_model_gives_memory_back_after_every_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[None] = []
    monkeypatch.setattr("turnwise.learn.trainer.trim_memory", lambda: given_back.append(None))
    trainer, batch = make_trainer(micro_batch_tokens=1, epochs=1, minibatches=1), make_batch()
    trainer.step(batch)
    assert not given_back
    trainer._is_large = True
    trainer.step(batch)
    # One row passes at a time; before the update and after it once more.
    assert len(given_back) == batch.num_rows + 2

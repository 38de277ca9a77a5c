"""The short pass: where it is used, and that it is never trusted unproven."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.engine.llama_forward import LlamaPass, fits
from turnwise.engine.local import LocalEngine

from .test_local import ask_all, assert_exact, make_engine, random_prompt, request
from .tiny_models import POSITIONS, make_model


@pytest.mark.parametrize(
    ("family", "is_short"), [("llama", True), ("qwen2", True), ("gpt2", False), ("mistral", False)]
)
def test_which_models_are_computed_in_the_short_pass(family: str, is_short: bool) -> None:
    assert (make_engine(family)._runner._short_pass is not None) is is_short


@pytest.mark.parametrize("change", [{"mlp_bias": True}, {"hidden_act": "gelu"}, {"rope_parameters": "linear"}])
def test_a_llama_with_other_parts_takes_its_own_pass_and_is_exact(change: dict[str, Any]) -> None:
    config = make_model("llama").config.to_dict()
    if "rope_parameters" in change:
        change = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**config, **change})).eval()
    assert not fits(model)
    engine = LocalEngine(copy.deepcopy(model), stop_ids=frozenset())
    prompt = random_prompt(3, 9)
    (completion,) = ask_all(engine, [request(prompt, new=6)])
    assert_exact(model, prompt, completion)


def test_a_short_pass_that_is_not_exact_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LlamaPass.__call__

    def noisy(self: LlamaPass, *arguments: Any) -> Any:
        return honest(self, *arguments) + 0.01

    monkeypatch.setattr(LlamaPass, "__call__", noisy)
    engine = make_engine("llama")
    assert engine._runner._short_pass is None
    assert engine.keeps_cache
    prompt = random_prompt(3, 9)
    assert_exact(make_model("llama"), prompt, ask_all(engine, [request(prompt, new=6)])[0])


def test_rotations_grow_with_the_sequence() -> None:
    prompt = random_prompt(1, POSITIONS - 8)
    (completion,) = ask_all(make_engine("llama"), [request(prompt, new=6)])
    assert len(prompt) > 64
    assert_exact(make_model("llama"), prompt, completion)


def test_joined_matrices_and_the_models_own_weights_are_the_same_memory() -> None:
    model, other = make_model("llama"), make_model("llama", seed=1)
    short = LlamaPass(model)
    with torch.no_grad():
        for name, weight in other.state_dict().items():
            model.state_dict()[name].copy_(weight)
    attention = other.model.layers[1].self_attn
    parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    assert torch.equal(short._layers[1].qkv.weight, torch.cat(parts))  # type: ignore[arg-type]

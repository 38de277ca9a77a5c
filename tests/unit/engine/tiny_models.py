"""Random models of a few thousand weights, in the structures of common families."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 40
WINDOW = 20
"""Longer than the engine's own probe, shorter than a conversation of these tests."""
POSITIONS = 96
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    # Wide enough that attention matters: a wrong mask must show in the log-probs.
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SHAPE))


def _qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**_SHAPE))


def _gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, initializer_range=0.4
    )
    return GPT2LMHeadModel(config)


def _gemma2() -> PreTrainedModel:
    """Every other layer sees only the last `WINDOW` tokens."""
    return Gemma2ForCausalLM(Gemma2Config(**_SHAPE, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8))


def _mistral() -> PreTrainedModel:
    """Every layer sees only the last `WINDOW` tokens."""
    return MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=WINDOW))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "gpt2": _gpt2,
    "gemma2": _gemma2,
    "mistral": _mistral,
}


def make_model(family: str, seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FAMILIES[family]().eval()

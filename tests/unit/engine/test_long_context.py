"""Long contexts and prompts that begin alike: by the shapes of what is made and by what is computed, not by clock."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from turnwise.engine import runner
from turnwise.engine.kv_pool import BLOCK_TOKENS
from turnwise.engine.local import LocalEngine

from .test_local import ask_all, assert_exact, make_engine, random_prompt, request, tokens_of, widths_of_passes
from .tiny_models import make_model

MANY = 32_000


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that are made, stored ones and views of them alike."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


def small_model(family: str, positions: int) -> PreTrainedModel:
    shape: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    if family == "gpt2":
        sizes = {"vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": positions}
        return GPT2LMHeadModel(GPT2Config(**sizes, **shape)).eval()
    sizes = {"vocab_size": 50, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": positions}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **shape)).eval()


def shapes_of_a_request(family: str, num_tokens: int) -> set[tuple[int, ...]]:
    engine = LocalEngine(small_model(family, num_tokens + 8), stop_ids=frozenset())
    # Attention that makes a table of its own for each pair of tokens is refused.
    with Shapes() as shapes, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        ask_all(engine, [request([7] * num_tokens, new=3, cache_key="long")], seconds=120)
    assert engine.state()["cached_tokens"] == math.ceil((num_tokens + 2) / BLOCK_TOKENS) * BLOCK_TOKENS
    return shapes.seen


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_nothing_that_is_made_grows_with_the_square_of_the_context(family: str) -> None:
    half, whole = shapes_of_a_request(family, MANY // 2), shapes_of_a_request(family, MANY)
    assert max(map(math.prod, whole)) <= 2.2 * max(map(math.prod, half))
    assert not [shape for shape in whole if sum(size >= MANY // 8 for size in shape) > 1]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_prompt_in_pieces_is_the_prompt_in_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = random_prompt(1, 88)
    whole = ask_all(make_engine(family), [request(prompt)])
    monkeypatch.setattr(runner, "_PASS_TOKENS", 40)
    monkeypatch.setattr(runner, "_PASS_SIGHT", 33 * 88)
    widths = widths_of_passes(monkeypatch)
    engine = make_engine(family)
    widths.clear()
    pieces = ask_all(engine, [request(prompt)])
    assert widths[:3] == [[40], [33], [15]]
    assert tokens_of(pieces) == tokens_of(whole)
    assert_exact(make_model(family), prompt, pieces[0])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_siblings_have_in_common_is_computed_and_kept_once(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, model = make_engine(family), make_model(family)
    rules = random_prompt(1, BLOCK_TOKENS)
    tasks = [[*rules, *random_prompt(2 + n, BLOCK_TOKENS), 5, n] for n in range(2)]
    prompts = [task for task in tasks for _ in range(4)]
    widths = widths_of_passes(monkeypatch)
    requests = [request(p, seed=n, new=4, cache_key=str(n)) for n, p in enumerate(prompts)]
    together = ask_all(engine, requests)
    # The first prompt, and the other's own part; their siblings ask the very same, and nothing is computed for them.
    assert widths[:3] == [[66], [34], [1] * 8]
    assert engine.state()["cached_tokens"] == (1 + 2 + 8) * BLOCK_TOKENS
    for prompt, completion in zip(prompts, together, strict=True):
        assert_exact(model, prompt, completion)
    longer = [[*p, *c.token_ids.tolist(), 3, 4] for p, c in zip(prompts, together, strict=True)]
    later = ask_all(engine, [request(p, seed=n, cache_key=str(n)) for n, p in enumerate(longer)])
    for prompt, completion in zip(longer, later, strict=True):
        assert_exact(model, prompt, completion)
    for number in range(8):
        engine.release(str(number))
    assert engine.state()["cached_tokens"] == 0


def test_siblings_of_a_window_and_equal_prompts_of_whole_blocks_are_exact() -> None:
    for family, length in (("mistral", 2 * BLOCK_TOKENS), ("llama", 2 * BLOCK_TOKENS), ("gpt2", BLOCK_TOKENS)):
        prompt = random_prompt(3, length)
        for completion in ask_all(make_engine(family), [request(prompt, seed=n) for n in range(4)]):
            assert_exact(make_model(family), prompt, completion)


def test_a_long_row_does_not_widen_the_passes_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_PASS_KEYS", 200)
    widths = widths_of_passes(monkeypatch)
    engine = make_engine()
    widths.clear()
    prompts = [random_prompt(n, 10) for n in range(5)] + [random_prompt(9, 80)]
    completions = ask_all(engine, [request(p, seed=n, new=3) for n, p in enumerate(prompts)])
    assert [1] in widths
    assert [1] * 5 in widths
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(make_model("llama"), prompt, completion)


def test_the_memory_of_a_rollout_goes_with_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_KEPT_BLOCKS", 2)
    engine, model = make_engine(), make_model("llama")
    prompts = [random_prompt(n, BLOCK_TOKENS + 5) for n in range(3)]
    ask_all(engine, [request(p, cache_key=str(n)) for n, p in enumerate(prompts)])
    blocks = weakref.ref(engine._runner._pool.layers[0].keys)
    sizes = []
    for number in range(3):
        assert blocks() is not None
        sizes.append(engine._runner._pool.num_blocks)
        engine.release(str(number))
    assert min(sizes) > 2
    # At once, without the garbage collector.
    assert blocks() is None
    assert engine._runner._pool.num_blocks == 1
    (again,) = ask_all(engine, [request(prompts[0])])
    assert_exact(model, prompts[0], again)

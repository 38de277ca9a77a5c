"""Siblings share the computation of their prompt, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from turnwise.learn.pack import micro_batches, pack
from turnwise.learn.policy import PolicyModel
from turnwise.learn.prefix_sharing import ATTENTION, enable_prefix_sharing, group_by_prefix
from turnwise.types import Batch, ExperienceId, Sample, Segment, TrajectoryId

from .parts import CPU, ShapeRecorder, make_experience, make_trainer
from .parts import gradients as gradients_of

_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def make_llama(**sizes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**_SIZES | sizes)).double().eval()


def make_sample(prompt: Sequence[int], replies: Sequence[Sequence[int]], sibling: int) -> Sample:
    """A row: the prompt, then replies with an observation of two tokens between them."""
    ids, turns = list(prompt), [-1] * len(prompt)
    for number, reply in enumerate(replies):
        between = [7, 8] if number else []
        ids += [*between, *reply]
        turns += [-1] * len(between) + [number] * len(reply)
    turn_ids = np.array(turns, dtype=np.int32)
    mask, count = turn_ids >= 0, np.arange(len(replies))
    rng = np.random.default_rng(sum(ids))
    credit = np.where(mask, rng.normal(size=len(ids)), 0).astype(np.float32)
    segment = Segment(
        token_ids=np.array(ids, dtype=np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -2.0, 0).astype(np.float32),
        turn_ids=turn_ids,
    )
    experience = replace(
        make_experience(rng),
        id=ExperienceId(TrajectoryId(0, "lake/train/0", sibling), 0),
        segment=segment,
        turn_indices=count.astype(np.int32),
        raw_rewards=np.zeros(len(count), dtype=np.float32),
        turn_rewards=np.zeros(len(count), dtype=np.float32),
        turn_states=count.astype(np.uint64),
        turn_steps=count.astype(np.int32),
    )
    return Sample(experience=experience, advantages=credit, returns=credit, values=credit, reference_logprobs=credit)


def make_groups(prompts: Sequence[int], replies: Sequence[Sequence[int]]) -> Batch:
    """One group for each length of a prompt; each sibling has replies of the given lengths."""
    rng = np.random.default_rng(0)
    samples = []
    for length in prompts:
        prompt = rng.integers(9, 40, length).tolist()
        for lengths in replies:
            said = [rng.integers(9, 40, n).tolist() for n in lengths]
            samples.append(make_sample(prompt, said, len(samples)))
    return pack(samples)


def gradients(batch: Batch, *, shares: bool, max_tokens: int = 10_000, **settings: Any) -> dict[str, torch.Tensor]:
    trainer = make_trainer(make_llama(), micro_batch_tokens=max_tokens, **settings)
    trainer.actor.enable_prefix_sharing = shares
    return gradients_of(trainer, batch)


@given(
    prompts=st.lists(st.integers(3, 9), min_size=1, max_size=3),
    replies=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=2), min_size=4, max_size=5),
    max_tokens=st.sampled_from([1, 20, 10_000]),
)
def test_gradients_are_those_of_the_rows_one_by_one(
    prompts: list[int], replies: list[list[int]], max_tokens: int
) -> None:
    batch = make_groups(prompts, replies)
    shared, plain = (gradients(batch, shares=shares, max_tokens=max_tokens) for shares in (True, False))
    assert shared.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(shared[name], gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("critic", ["value_head", "model"])
def test_a_critic_and_recomputed_layers_share_as_well(critic: str) -> None:
    batch = make_groups([9, 7], [[2], [1, 2], [3], [1]])
    settings: dict[str, Any] = {
        "critic": {"type": critic},
        "model_settings": {"gradient_checkpointing": True},
        "kl": {"type": "loss"},
    }
    shared, plain = (gradients(batch, shares=shares, **settings) for shares in (True, False))
    for name, gradient in plain.items():
        torch.testing.assert_close(shared[name], gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("max_tokens", [30, 10_000])
def test_families_hold_every_sampled_token_once_and_every_prompt_once(max_tokens: int) -> None:
    batch = make_groups([9, 9, 7], [[2], [1, 2], [3], [1]])
    rows = np.arange(batch.num_rows)
    parts = list(micro_batches(batch, rows, max_tokens, CPU, enable_prefix_sharing=True))
    assert np.array_equal(np.sort(np.concatenate([m.source for m in parts])), np.flatnonzero(batch.loss_mask))
    for micro in parts:
        before = micro.input_ids.flatten()[micro.state].numpy()
        assert np.array_equal(before, batch.token_ids[micro.source - 1])
        assert micro.families is not None
        assert micro.input_ids.shape[1] <= max_tokens or sum(family.rows.size for family in micro.families) == 1
    num_inputs = sum(micro.input_ids.numel() for micro in parts)
    if max_tokens == 10_000:
        assert num_inputs == 25 + 12 * 4, "three prompts, and twelve tails padded to the longest but its last token"


def test_rows_that_begin_alike_share_what_they_begin_with() -> None:
    prompts = [[*range(10, 30), n] for n in range(4)]
    batch = pack([make_sample(prompt, [[5, 6]], n) for n, prompt in enumerate(prompts)])
    (micro,) = micro_batches(batch, np.arange(4), 10_000, CPU, enable_prefix_sharing=True)
    assert micro.input_ids.numel() == 20 + 4 * 2
    shared, plain = (gradients(batch, shares=shares) for shares in (True, False))
    for name, gradient in plain.items():
        torch.testing.assert_close(shared[name], gradient, rtol=1e-6, atol=1e-7)


def test_a_long_sibling_does_not_pad_the_short_ones() -> None:
    batch = make_groups([10], [[60], [2], [2], [2], [2], [2]])
    (micro,) = micro_batches(batch, np.arange(6), 10_000, CPU, enable_prefix_sharing=True)
    assert micro.input_ids.numel() == 10 + 59 + 10 + 5 * 1


def test_a_row_without_a_sampled_token_stays_a_row() -> None:
    batch = make_groups([9], [[2], [2], [2], [2]])
    mask = batch.loss_mask.copy()
    mask[batch.row_starts[1] : batch.row_starts[2]] = False
    assert group_by_prefix(replace(batch, loss_mask=mask), np.arange(4), 1000) is None


def test_rows_without_siblings_stay_rows() -> None:
    batch = make_groups([9, 9, 7], [[2]])
    assert group_by_prefix(batch, np.arange(3), 1000) is None
    (micro,) = micro_batches(batch, np.arange(3), 1000, CPU, enable_prefix_sharing=True)
    assert micro.families is None


def test_a_model_with_a_sliding_window_is_read_row_by_row() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(**_SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=0)
    model = Qwen2ForCausalLM(config).eval()
    assert not enable_prefix_sharing(model)
    assert model.config._attn_implementation != ATTENTION


def test_what_the_model_computes_for_others_stays() -> None:
    model = make_llama()
    ids, mask = torch.arange(1, 13).view(2, 6), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    before = model(input_ids=ids, attention_mask=mask).logits
    assert enable_prefix_sharing(model)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits[mask.bool()], before[mask.bool()])


@pytest.mark.parametrize(("prompt", "tail"), [(1500, 3), (3, 1500)])
def test_no_tensor_grows_with_the_square_of_the_context(prompt: int, tail: int) -> None:
    batch = make_groups([prompt], [[tail], [tail], [tail], [tail]])
    policy = PolicyModel(make_llama().float(), 1.0)
    (micro,) = micro_batches(batch, np.arange(4), 10**9, CPU, enable_prefix_sharing=True)
    with ShapeRecorder() as recorder:
        policy.score(micro).logprobs.sum().backward()
    assert not [shape for shape in recorder.shapes if sum(size >= 1500 for size in shape) > 1]

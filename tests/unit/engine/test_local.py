"""The local engine against a plain forward pass: whatever the batch, the log-probs are the model's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from turnwise.engine import runner
from turnwise.engine.kv_pool import BLOCK_TOKENS, BlockPool, Row
from turnwise.engine.local import LocalEngine
from turnwise.engine.runner import ModelRunner
from turnwise.errors import EngineError, SyncError
from turnwise.types import Completion, GenerateRequest, Sampling

from .tiny_models import FAMILIES, POSITIONS, VOCABULARY, WINDOW, make_model

STOP = 0
TOLERANCE = 1e-4


def make_engine(family: str = "llama", **options: Any) -> LocalEngine:
    return LocalEngine(make_model(family), stop_ids=frozenset({STOP}), **options)


def request(
    prompt: Sequence[int], *, seed: int = 0, new: int = 6, cache_key: str | None = None, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=np.array(prompt, dtype=np.int32),
        sampling=Sampling(max_new_tokens=new, **sampling),
        seed=seed,
        cache_key=cache_key,
    )


def random_prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, VOCABULARY, length).tolist()


@torch.no_grad()
def own_logprobs(model: PreTrainedModel, prompt: Sequence[int], sampled: Sequence[int]) -> np.ndarray:
    """What the model itself says about the sampled tokens, in one pass with nothing kept."""
    ids = torch.tensor([[*prompt, *sampled]])
    logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].double(), dim=-1)
    rows = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
    return logprobs[rows, torch.tensor(list(sampled))].numpy()


def assert_exact(model: PreTrainedModel, prompt: Sequence[int], completion: Completion) -> None:
    expected = own_logprobs(model, prompt, completion.token_ids.tolist())
    np.testing.assert_allclose(completion.behavior_logprobs, expected, atol=TOLERANCE)


def bounded(coroutine: Awaitable[Any], seconds: float = 10) -> Any:
    """A wait that never ends is a failure, not a hanging test run."""

    async def run() -> Any:
        return await asyncio.wait_for(coroutine, seconds)

    return asyncio.run(run())


def ask_all(engine: LocalEngine, requests: Sequence[GenerateRequest], seconds: float = 10) -> list[Completion]:
    async def run() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(r) for r in requests))

    return bounded(run(), seconds)


async def play_turns(
    engine: LocalEngine, name: str, *, turns: int, seed: int, gap: int = 0, length: int = 5
) -> list[tuple[list[int], Completion]]:
    """Turns that extend each other, with a few tokens of context between them."""
    ids, played = random_prompt(seed, length), []
    for turn in range(turns):
        for _ in range(gap):
            await asyncio.sleep(0)
        completion = await engine.generate(request(ids, seed=seed * 100 + turn, cache_key=name))
        played.append((ids, completion))
        ids = [*ids, *completion.token_ids.tolist(), *random_prompt(seed + turn + 50, 1 + (seed + turn) % 4)]
    engine.release(name)
    return played


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_the_models_own_over_three_turns_of_ragged_conversations(family: str) -> None:
    """Conversations start at different times, have different lengths and end after different numbers of turns."""
    engine = make_engine(family)

    async def run() -> list[list[tuple[list[int], Completion]]]:
        plays = [play_turns(engine, f"s{n}", turns=3 - n % 2, seed=n, gap=5 * n, length=3 + 4 * n) for n in range(5)]
        return await asyncio.gather(*plays)

    model = make_model(family)
    played = bounded(run())
    assert [len(turns) for turns in played] == [3, 2, 3, 2, 3]
    for prompt, completion in (turn for turns in played for turn in turns):
        assert_exact(model, prompt, completion)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_plain_attention_keeps_its_cache(family: str) -> None:
    assert make_engine(family).keeps_cache


@pytest.mark.parametrize("family", ["gemma2", "mistral"])
def test_sequences_longer_than_a_sliding_window_are_exact(family: str) -> None:
    """The window is longer than the engine's own probe, so a probe alone does not show it."""
    engine, model = make_engine(family), make_model(family)
    long, short = random_prompt(1, 2 * WINDOW), random_prompt(2, WINDOW - 3)
    together = ask_all(engine, [request(long, seed=1, cache_key="long"), request(short, seed=2, cache_key="short")])
    for prompt, completion in zip((long, short), together, strict=True):
        assert_exact(model, prompt, completion)


def widths_of_passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many tokens each pass computes of each row, from here on."""
    widths: list[list[int]] = []
    prepare = BlockPool.prepare

    def counting(pool: BlockPool, rows: Sequence[Row], ends: Sequence[int], device: torch.device) -> Any:
        widths.append([end - row.start for row, end in zip(rows, ends, strict=True)])
        return prepare(pool, rows, ends, device)

    monkeypatch.setattr(BlockPool, "prepare", counting)
    return widths


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_kept_rows_are_used_again(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(family)
    widths = widths_of_passes(monkeypatch)
    prompt = random_prompt(1, 30)
    (first,) = ask_all(engine, [request(prompt, new=1, cache_key="a")])
    ask_all(engine, [request([*prompt, *first.token_ids.tolist(), 5], new=1, cache_key="a")])
    # The second turn computes the sampled token and the one behind it, not the whole prompt.
    assert widths == [[30], [2]]


def test_a_changed_prefix_is_not_taken_from_the_cache() -> None:
    engine, model = make_engine(), make_model("llama")
    prompt = random_prompt(1, 12)
    ask_all(engine, [request(prompt, cache_key="a")])
    for changed in ([*prompt[:4], 7, *prompt[5:], 3], prompt[:6], [9, *prompt], prompt):
        (completion,) = ask_all(engine, [request(changed, seed=3, cache_key="a")])
        assert_exact(model, changed, completion)


def test_padding_may_reach_beyond_the_models_positions() -> None:
    """A row near the end of its context shares a pass with a long new prompt; its padding has no position."""
    engine, model = make_engine("gpt2"), make_model("gpt2")
    prompt = random_prompt(1, POSITIONS - 16)
    (first,) = ask_all(engine, [request(prompt, new=4, cache_key="old")])
    old, new = [*prompt, *first.token_ids.tolist(), 3], random_prompt(2, 50)
    completions = ask_all(engine, [request(old, new=4, cache_key="old"), request(new, new=4, cache_key="new")])
    for ids, completion in zip((old, new), completions, strict=True):
        assert_exact(model, ids, completion)


def test_two_requests_with_one_cache_key_at_once_do_not_mix() -> None:
    engine, model = make_engine(), make_model("llama")
    prompts = [random_prompt(seed, 6 + seed) for seed in range(3)]
    completions = ask_all(engine, [request(p, seed=n, cache_key="same") for n, p in enumerate(prompts)])
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)
    engine.release("same")
    assert engine.state()["cached_tokens"] == 0


@pytest.mark.parametrize("sampling", [{"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.5}], ids=str)
def test_logprobs_follow_the_sampling_settings(sampling: dict[str, Any]) -> None:
    engine, model = make_engine(), make_model("llama")
    prompt = random_prompt(4, 9)
    (completion,) = ask_all(engine, [request(prompt, seed=5, new=8, **sampling)])
    sampled = completion.token_ids.tolist()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1].double()
    logits /= sampling.get("temperature", 1.0)
    for row, token, given in zip(logits, sampled, completion.behavior_logprobs, strict=True):
        order = row.argsort(descending=True)
        probs = row.softmax(-1)
        before = probs[order].cumsum(-1) - probs[order]
        kept = order[: sampling.get("top_k") or len(order)]
        kept = kept[before[: len(kept)] < sampling.get("top_p", 1.0)]
        assert token in kept.tolist()
        assert float(given) == pytest.approx(float((probs[token] / probs[kept].sum()).log()), abs=TOLERANCE)


def test_greedy_repeats_the_models_likeliest_tokens() -> None:
    engine, model = make_engine(), make_model("llama")
    ids = random_prompt(6, 8)
    (completion,) = ask_all(engine, [request(ids, new=5, temperature=0.0)])
    for token in completion.token_ids.tolist():
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids = [*ids, token]
    assert not completion.behavior_logprobs.any()


@pytest.mark.parametrize(
    ("dtype", "error", "keeps_cache"),
    [
        (torch.float32, 1e-6, True),
        (torch.float32, 0.01, False),
        (torch.bfloat16, 0.01, True),
        (torch.bfloat16, 0.15, False),
    ],
)
def test_pooled_rows_may_differ_by_the_rounding_of_the_weights_alone(
    dtype: torch.dtype, error: float, keeps_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ModelRunner._plain_logits
    monkeypatch.setattr(ModelRunner, "_plain_logits", lambda engine, ids: plain(engine, ids) * (1 + error))
    engine = LocalEngine(make_model("gpt2").to(dtype), stop_ids=frozenset({STOP}))
    assert engine.keeps_cache == keeps_cache


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_in_bfloat16_keeps_its_cache_and_its_logprobs(family: str) -> None:
    """Within the rounding of logits of up to 8; families without a pooled cache are found out as in float32."""
    exact = make_engine(family)
    model = make_model(family)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    engine = LocalEngine(model, stop_ids=frozenset({STOP}))
    assert engine.keeps_cache == exact.keeps_cache
    assert (engine._runner._short_pass is None) == (exact._runner._short_pass is None)
    engine.load_weights(make_model(family, seed=1).state_dict(), 1)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    prompt = random_prompt(1, 9)
    for _ in range(2):
        (completion,) = ask_all(engine, [request(prompt, cache_key="a")])
        ids = completion.token_ids.tolist()
        np.testing.assert_allclose(completion.behavior_logprobs, own_logprobs(model, prompt, ids), atol=0.1)
        expected = own_logprobs(make_model(family, seed=1), prompt, ids)
        np.testing.assert_allclose(completion.behavior_logprobs, expected, atol=0.3)
        prompt = [*prompt, *ids, 5, 6]


# --- what ends a reply -----------------------------------------------------------------------------------------------


def test_a_prompt_that_does_not_fit_is_refused_and_hurts_nobody() -> None:
    engine, model = make_engine(), make_model("llama")
    prompt = random_prompt(1, 5)

    async def run() -> list[Any]:
        too_long = engine.generate(request([1] * (POSITIONS - 5), new=6))
        return await asyncio.gather(too_long, engine.generate(request(prompt)), return_exceptions=True)

    error, completion = bounded(run())
    assert isinstance(error, EngineError)
    assert str(POSITIONS) in str(error)
    assert_exact(model, prompt, completion)
    (at_the_limit,) = ask_all(engine, [request([1] * (POSITIONS - 6), new=6)])
    assert_exact(model, [1] * (POSITIONS - 6), at_the_limit)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(EngineError, match="at least one"):
        ask_all(make_engine(), [request([])])


# --- determinism -----------------------------------------------------------------------------------------------------


def tokens_of(completions: Sequence[Completion]) -> list[list[int]]:
    return [c.token_ids.tolist() for c in completions]


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_tokens_depend_on_the_request_alone(family: str) -> None:
    requests = [request(random_prompt(n, 3 + 3 * n), seed=n, new=8) for n in range(8)]
    together = ask_all(make_engine(family), requests)
    assert tokens_of(ask_all(make_engine(family), requests)) == tokens_of(together)
    assert tokens_of(ask_all(make_engine(family), requests[::-1]))[::-1] == tokens_of(together)
    engine = make_engine(family)
    alone = [ask_all(engine, [r])[0] for r in requests]
    assert tokens_of(alone) == tokens_of(together)
    assert tokens_of(ask_all(make_engine(family, max_rows=3), requests)) == tokens_of(together)


def test_prefill_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [request(random_prompt(n, 4 + 5 * n), seed=n) for n in range(6)]
    whole = ask_all(make_engine(), requests)
    monkeypatch.setattr(runner, "_PASS_TOKENS", 30)
    assert tokens_of(ask_all(make_engine(), requests)) == tokens_of(whole)


# --- weights ---------------------------------------------------------------------------------------------------------


def test_new_weights_replace_kept_rows() -> None:
    engine, new = make_engine(), make_model("llama", seed=1)
    prompt = random_prompt(1, 10)
    (before,) = ask_all(engine, [request(prompt, cache_key="a")])
    engine.load_weights(new.state_dict(), 5)
    longer = [*prompt, *before.token_ids.tolist(), 4]
    (after,) = ask_all(engine, [request(longer, cache_key="a")])
    assert (before.policy_version, after.policy_version, engine.policy_version) == (0, 5, 5)
    assert_exact(new, longer, after)
    old = own_logprobs(make_model("llama"), longer, after.token_ids.tolist())
    assert np.abs(old - after.behavior_logprobs).max() > 0.01


def test_weights_of_another_shape_of_model_are_refused() -> None:
    engine = make_engine()
    weights = dict(make_model("llama").state_dict())
    weights["extra"] = weights.pop("model.norm.weight")
    with pytest.raises(SyncError, match="extra"):
        engine.load_weights(weights, 1)
    assert engine.policy_version == 0


def test_weights_are_not_replaced_under_a_running_request() -> None:
    engine = make_engine()
    weights = make_model("llama", seed=1).state_dict()

    async def run() -> Completion:
        running = asyncio.create_task(engine.generate(request(random_prompt(1, 5), seed=1, new=40)))
        while not engine._active:
            await asyncio.sleep(0)
        with pytest.raises(SyncError, match="running"):
            engine.load_weights(weights, 1)
        return await running

    assert bounded(run()).policy_version == 0


def test_weights_may_be_replaced_after_a_running_request_was_cancelled() -> None:
    engine, new = make_engine(), make_model("llama", seed=1)
    prompt = random_prompt(2, 7)

    async def run() -> Completion:
        running = asyncio.create_task(engine.generate(request(random_prompt(1, 5), seed=1, new=40, cache_key="a")))
        while not engine._active:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        engine.load_weights(new.state_dict(), 1)
        return await engine.generate(request(prompt, cache_key="b"))

    assert_exact(new, prompt, bounded(run()))
    engine.release("b")
    assert engine.state()["cached_tokens"] == 0


# --- failures and cancellation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failing_pass", [1, 2, 4])
def test_a_failing_pass_reaches_everyone_who_waits(failing_pass: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first pass nobody is decoding yet; with room for two rows, others are still in the queue."""
    engine = make_engine(max_rows=2)
    forward, passes = engine._runner._pooled_logits, 0

    def failing(rows: Any) -> Any:
        nonlocal passes
        passes += 1
        if passes == failing_pass:
            raise RuntimeError("out of memory")
        return forward(rows)

    async def run() -> list[Any]:
        waits = [engine.generate(request(random_prompt(n, 4), seed=n, new=30, cache_key=str(n))) for n in range(4)]
        return await asyncio.gather(*waits, return_exceptions=True)

    monkeypatch.setattr(engine._runner, "_pooled_logits", failing)
    outcomes = bounded(run(), 5)
    errors = [outcome for outcome in outcomes if isinstance(outcome, EngineError)]
    assert len(errors) >= 3
    assert all("out of memory" in str(error) for error in errors)
    assert all(isinstance(outcome, (EngineError, Completion)) for outcome in outcomes)
    prompt = random_prompt(9, 5)
    assert_exact(make_model("llama"), prompt, ask_all(engine, [request(prompt, cache_key="0")])[0])


def test_a_cancelled_request_leaves_the_others_alone() -> None:
    requests = [request(random_prompt(n, 5 + n), seed=n, new=12) for n in range(4)]
    expected = tokens_of(ask_all(make_engine(), requests))
    engine = make_engine(max_rows=3)

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
        while not engine._active:
            await asyncio.sleep(0)
        tasks[1].cancel()  # decoding
        tasks[3].cancel()  # still in the queue
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = bounded(run())
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert isinstance(outcomes[3], asyncio.CancelledError)
    assert tokens_of([outcomes[0], outcomes[2]]) == [expected[0], expected[2]]
    assert not engine._active
    assert engine.state()["cached_tokens"] == 0


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_released_blocks_are_used_again() -> None:
    engine = make_engine()

    async def run() -> set[int]:
        sizes = set()
        for number in range(12):
            cache_key = f"s{number}"
            await engine.generate(request(random_prompt(number, 3 + 5 * number), new=1, cache_key=cache_key))
            await engine.generate(request(random_prompt(number, 4), new=1))
            engine.release(cache_key)
            sizes.add(engine._runner._pool.num_blocks)
        return sizes

    assert max(bounded(run())) <= 5
    assert engine.state()["cached_tokens"] == 0
    assert not engine._rows_by_key


def test_a_cache_key_released_while_it_decodes_frees_its_slot() -> None:
    engine = make_engine()

    async def run() -> None:
        task = asyncio.create_task(engine.generate(request(random_prompt(1, 5), seed=1, new=20, cache_key="a")))
        while not engine._active:
            await asyncio.sleep(0)
        engine.release("a")
        again = engine.generate(request(random_prompt(2, 5), seed=2, new=3, cache_key="a"))
        await asyncio.gather(task, again)

    bounded(run())
    engine.release("a")
    assert engine.state()["cached_tokens"] == 0


def test_the_pool_grows_with_the_tokens_that_are_kept() -> None:
    engine, model = make_engine(), make_model("llama")
    prompts = [random_prompt(n, 2 + n % 7) for n in range(20)] + [random_prompt(99, 70)]
    requests = [request(p, seed=n, new=2, cache_key=f"s{n}") for n, p in enumerate(prompts)]
    completions = ask_all(engine, requests[:10]) + ask_all(engine, requests[10:])
    assert engine.state()["cached_tokens"] == (20 + 3) * BLOCK_TOKENS
    for prompt, completion in zip(prompts, completions, strict=True):
        assert_exact(model, prompt, completion)
    kept = [*prompts[3], *completions[3].token_ids.tolist(), 8]
    (later,) = ask_all(engine, [request(kept, seed=7, cache_key="s3")])
    assert_exact(model, kept, later)


def test_release_of_an_unknown_cache_key_is_nothing() -> None:
    engine = make_engine()
    engine.release("never seen")
    assert engine.state()["cached_tokens"] == 0


def test_new_weights_wait_for_running_requests_and_hold_back_later_ones() -> None:
    engine, new = make_engine(), make_model("llama", seed=1)
    first, second = random_prompt(1, 5), random_prompt(2, 6)

    async def run() -> tuple[Completion, Completion]:
        running = asyncio.create_task(engine.generate(request(first, seed=1, new=40)))
        while not engine._active:
            await asyncio.sleep(0)
        replacing = asyncio.create_task(engine.update_weights(new.state_dict(), 1))
        await asyncio.sleep(0)
        later = asyncio.create_task(engine.generate(request(second, seed=2)))
        await replacing
        assert running.done()
        assert not later.done()
        return await running, await later

    before, after = bounded(run())
    assert (before.policy_version, after.policy_version) == (0, 1)
    assert_exact(make_model("llama"), first, before)
    assert_exact(new, second, after)


def test_an_idle_engine_has_new_weights_at_once() -> None:
    engine, new = make_engine(), make_model("llama", seed=1)
    bounded(engine.update_weights(new.state_dict(), 3))
    assert engine.policy_version == 3
    with pytest.raises(SyncError, match="missing"):
        bounded(engine.update_weights({}, 4))
    # A refusal must not leave the engine waiting.
    (completion,) = ask_all(engine, [request(random_prompt(1, 5))])
    assert completion.policy_version == 3

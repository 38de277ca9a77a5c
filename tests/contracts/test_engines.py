"""The contract of an engine: tokens in, tokens out, under one version of the weights, whatever else is running."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from turnwise.config.component import ENGINES
from turnwise.deps import EngineSite
from turnwise.protocols import ChatTemplate, Engine
from turnwise.types import Completion, FinishReason, GenerateRequest, Sampling

from .entries import names_of
from .setting import copied, make_model, model_path, settings_with, template
from .vllm_servers import NEEDS_VLLM, open_client

pytestmark = pytest.mark.slow


def tells_tokens(name: str) -> bool:
    """Whether it is one of the contract: others speak in texts, and settings refuse to learn from them."""
    return getattr(ENGINES.get_params(name), "tells_tokens", True)


TOLERANCE = 1e-4
"""Nats between the log-probs of an engine and those of a plain forward pass, in float32."""
EVERY = [name for name in names_of("engine") if tells_tokens(name)]
TELLS_ALTERNATIVES = ("local", "vllm", "scripted")
"""Those of others may leave them out."""
WITHOUT_MODEL = ("scripted",)
"""Fakes: what they say does not come from weights."""


def _marked(names: Sequence[str]) -> list[Any]:
    return [pytest.param(name, marks=NEEDS_VLLM) if name == "vllm" else name for name in names]


every_engine = pytest.mark.parametrize("name", _marked(EVERY))
with_model = pytest.mark.parametrize("name", _marked([name for name in EVERY if name not in WITHOUT_MODEL]))


class ManyStops:
    """The template of the model, with every fifth token an end: replies of a model that has learnt nothing do end."""

    def __init__(self, template: ChatTemplate, vocabulary: int) -> None:
        self._template = template
        self.stop_ids = template.stop_ids | frozenset(range(0, vocabulary, 5))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._template, name)


@cache
def stops() -> ManyStops:
    return ManyStops(template(), make_model().config.vocab_size)


def open_engine(name: str, *, policy_version: int = 0) -> Engine:
    if name == "vllm":
        return open_client(stops(), policy_version=policy_version)
    site = EngineSite(model_path=model_path(), dtype="float32", template=stops(), policy_version=policy_version)
    target: Any = ENGINES.get_target(name)
    return target.open(settings_with(f"engine.type={name}").engine, site)


def request(seed: int, *, length: int = 9, new: int = 6, key: str | None = None, **sampling: Any) -> GenerateRequest:
    """A prompt of its own for each seed."""
    prompt = np.random.default_rng(seed).integers(1, 250, length).astype(np.int32)
    return asked(prompt, seed=seed, new=new, key=key, **sampling)


def asked(prompt: np.ndarray, *, seed: int = 0, new: int = 6, key: str | None = None, **how: Any) -> GenerateRequest:
    return GenerateRequest(prompt_ids=prompt, sampling=Sampling(max_new_tokens=new, **how), seed=seed, cache_key=key)


def ask(engine: Engine, *requests: GenerateRequest) -> list[Completion]:
    async def together() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(together())


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in completions]


@torch.no_grad()
def assert_exact(model: PreTrainedModel, given: GenerateRequest, completion: Completion) -> None:
    """The log-probs are those of a plain forward pass over exactly these ids."""
    ids = torch.tensor(np.concatenate([given.prompt_ids, completion.token_ids])).long()[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(given.prompt_ids) - 1 : -1].double()
    table = torch.log_softmax(logits / given.sampling.temperature, dim=-1)
    expected = table.gather(1, ids[0, len(given.prompt_ids) :, None]).squeeze(1)
    np.testing.assert_allclose(completion.behavior_logprobs, expected.numpy(), atol=TOLERANCE)


# --- replies ---------------------------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("new", [1, 3, 24])
def test_a_reply_ends_with_its_first_stop_token_or_at_its_budget(name: str, new: int) -> None:
    requests = [request(seed, new=new) for seed in range(12)]
    for completion in ask(open_engine(name), *requests):
        ids = completion.token_ids.tolist()
        assert 1 <= len(ids) <= new
        found = [place for place, token in enumerate(ids) if token in stops().stop_ids]
        if completion.finish_reason is FinishReason.STOP:
            assert found == [len(ids) - 1]
        else:
            assert (found, len(ids)) == ([], new)


@every_engine
def test_every_token_has_a_logprob_and_the_version_that_sampled_it(name: str) -> None:
    engine = open_engine(name, policy_version=4)
    assert engine.policy_version == 4
    for completion in ask(engine, *(request(seed) for seed in range(4))):
        assert completion.policy_version == 4
        assert completion.token_ids.dtype == np.int32
        assert completion.behavior_logprobs.dtype == np.float32
        assert np.isfinite(completion.behavior_logprobs).all()
        assert (completion.behavior_logprobs <= 0).all()


@with_model
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_models_own_over_turns_that_extend_each_other(name: str, temperature: float) -> None:
    engine, model = open_engine(name), make_model()
    requests = [request(seed, length=5 + seed, key=str(seed), temperature=temperature) for seed in range(4)]
    for _ in range(3):
        completions = ask(engine, *requests)
        for given, completion in zip(requests, completions, strict=True):
            assert_exact(model, given, completion)
        requests = [
            asked(
                np.concatenate([given.prompt_ids, completion.token_ids, given.prompt_ids[:2]]),
                seed=given.seed + 50,
                key=given.cache_key,
                temperature=temperature,
            )
            for given, completion in zip(requests, completions, strict=True)
        ]


# --- alternatives ----------------------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("num", [1, 5])
def test_alternatives_are_told_for_every_token_and_change_none(name: str, num: int) -> None:
    requests = [request(seed, length=3 + seed) for seed in range(4)]
    plain = ask(open_engine(name), *requests)
    assert [completion.alternatives for completion in plain] == [None] * 4
    # Of those that share a batch some ask, with numbers of their own.
    counts = [num, 0, num + 1, num]
    completions = ask(open_engine(name), *(replace(r, alternatives=n) for r, n in zip(requests, counts, strict=True)))
    assert tokens(completions) == tokens(plain)
    for count, completion in zip(counts, completions, strict=True):
        told = completion.alternatives
        if told is None:
            assert count == 0 or name not in TELLS_ALTERNATIVES
            continue
        assert told.token_ids.shape == told.logprobs.shape == (len(completion.token_ids), count)
        assert (told.token_ids.dtype, told.logprobs.dtype) == (np.int32, np.float32)
        assert all(len(set(place)) == count for place in told.token_ids.tolist())
        assert (np.diff(told.logprobs, axis=1) <= 0).all()
        assert (np.exp(told.logprobs).sum(axis=1) <= 1 + TOLERANCE).all()
        is_sampled = told.token_ids == completion.token_ids[:, None]
        sampled = np.broadcast_to(completion.behavior_logprobs[:, None], is_sampled.shape)
        np.testing.assert_allclose(told.logprobs[is_sampled], sampled[is_sampled], atol=TOLERANCE)


@with_model
@pytest.mark.parametrize("how", [{}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.1}], ids=str)
@torch.no_grad()
def test_alternatives_are_those_of_the_distribution_that_was_drawn_from(name: str, how: dict[str, Any]) -> None:
    """Of the model at temperature 1 where the reply is greedy; minus infinity stands for what could not be drawn."""
    model, given = make_model(), replace(request(2, **how), alternatives=6)
    (completion,) = ask(open_engine(name), given)
    told = completion.alternatives
    if told is None:
        assert name not in TELLS_ALTERNATIVES
        return
    ids = torch.tensor(np.concatenate([given.prompt_ids, completion.token_ids])).long()[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(given.prompt_ids) - 1 : -1].double()
    table = torch.log_softmax(logits / (how.get("temperature") or 1.0), dim=-1)
    for place, (found, logprobs) in enumerate(zip(told.token_ids.tolist(), told.logprobs.tolist(), strict=True)):
        order = table[place].argsort(descending=True)
        mass_before = torch.cumsum(table[place][order].exp(), 0) - table[place][order].exp()
        num_kept = how.get("top_k") or int((mass_before < how.get("top_p", 2.0)).sum())
        kept = table[place][order[:num_kept]]
        expected = (kept - kept.logsumexp(0))[:6].tolist()
        assert len(found) == 6
        assert logprobs[num_kept:] == [-math.inf] * (6 - min(num_kept, 6))
        np.testing.assert_allclose(logprobs[:num_kept], expected, atol=TOLERANCE)
        np.testing.assert_allclose(table[place][found[:num_kept]], kept[:6], atol=TOLERANCE)


# --- chance ----------------------------------------------------------------------------------------------------------


@every_engine
def test_the_same_request_gives_the_same_tokens_whatever_it_shares_its_batch_with(name: str) -> None:
    requests = [request(seed, length=3 + 2 * seed, new=8) for seed in range(6)]
    together = tokens(ask(open_engine(name), *requests))
    assert tokens(ask(open_engine(name), *requests[::-1]))[::-1] == together
    engine = open_engine(name)
    assert [tokens(ask(engine, alone))[0] for alone in requests] == together


@every_engine
def test_greedy_replies_do_not_depend_on_dice(name: str) -> None:
    prompt = request(3).prompt_ids
    replies = tokens(ask(open_engine(name), *(asked(prompt, seed=seed, temperature=0.0) for seed in range(5))))
    assert replies == [replies[0]] * 5


@with_model
@torch.no_grad()
def test_greedy_replies_are_the_likeliest_tokens(name: str) -> None:
    model, given = make_model(), request(3, new=12, temperature=0.0)
    (reply,) = tokens(ask(open_engine(name), given))
    ids = torch.tensor(given.prompt_ids.tolist() + reply)[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, len(given.prompt_ids) - 1 : -1]
    assert reply == logits.argmax(dim=-1).tolist()


@with_model
def test_seeds_make_a_difference(name: str) -> None:
    prompt = request(3).prompt_ids
    assert len(set(map(tuple, tokens(ask(open_engine(name), *(asked(prompt, seed=n) for n in range(8))))))) > 1


# --- weights ---------------------------------------------------------------------------------------------------------


@every_engine
def test_after_an_update_replies_are_of_the_new_version(name: str) -> None:
    engine = open_engine(name)
    assert ask(engine, request(1))[0].policy_version == 0
    asyncio.run(engine.update_weights(make_model(noise_seed=1).state_dict(), 7))
    assert engine.policy_version == 7
    assert ask(engine, request(1))[0].policy_version == 7


@with_model
def test_new_weights_are_those_of_the_next_reply_also_behind_a_kept_prompt(name: str) -> None:
    engine, new = open_engine(name), make_model(noise_seed=1)
    first = request(1, key="a")
    (before,) = ask(engine, first)
    asyncio.run(engine.update_weights(new.state_dict(), 1))
    longer = asked(np.concatenate([first.prompt_ids, before.token_ids, first.prompt_ids[:2]]), seed=5, key="a")
    assert_exact(new, longer, ask(engine, longer)[0])


@with_model
def test_weights_are_a_copy(name: str) -> None:
    """The learner goes on changing its own."""
    engine, new = open_engine(name), make_model(noise_seed=1)
    weights = copied(new.state_dict())
    asyncio.run(engine.update_weights(weights, 1))
    for tensor in weights.values():
        tensor.zero_()
    (completion,) = ask(engine, request(1))
    assert_exact(new, request(1), completion)


@with_model
def test_every_reply_is_served_by_the_one_version_that_it_names(name: str) -> None:
    """Requests come before, during and after an update; none mixes weights, and none waits for ever."""
    engine, models = open_engine(name), {0: make_model(), 1: make_model(noise_seed=1)}
    requests = [request(seed, new=30) for seed in range(8)]

    async def run() -> list[Completion]:
        early = [asyncio.create_task(engine.generate(given)) for given in requests[:4]]
        for _ in range(6):
            await asyncio.sleep(0)
        update = asyncio.create_task(engine.update_weights(models[1].state_dict(), 1))
        await asyncio.sleep(0)
        during = [asyncio.create_task(engine.generate(given)) for given in requests[4:6]]
        await update
        assert engine.policy_version == 1
        late = [await engine.generate(given) for given in requests[6:]]
        return [*await asyncio.gather(*early, *during), *late]

    completions = asyncio.run(run())
    assert [completion.policy_version for completion in completions[6:]] == [1, 1]
    for given, completion in zip(requests, completions, strict=True):
        assert_exact(models[completion.policy_version], given, completion)


# --- one among many --------------------------------------------------------------------------------------------------


@every_engine
@pytest.mark.parametrize("num_waits", [0, 1, 5])
def test_a_cancelled_request_leaves_the_others_alone(name: str, num_waits: int) -> None:
    requests = [request(seed, new=12) for seed in range(4)]
    expected = tokens(ask(open_engine(name), *requests))
    engine = open_engine(name)

    async def run() -> list[Completion]:
        running = [asyncio.create_task(engine.generate(given)) for given in requests]
        for _ in range(num_waits):
            await asyncio.sleep(0)
        running[1].cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return [task.result() for number, task in enumerate(running) if number != 1]

    assert tokens(asyncio.run(run())) == [expected[0], expected[2], expected[3]]
    assert tokens(ask(engine, requests[1])) == [expected[1]]


@every_engine
def test_releasing_a_key_forgets_nothing_else(name: str) -> None:
    engine = open_engine(name)
    engine.release("never seen")
    ask(engine, request(1, key="a"), request(2, key="b"))
    engine.release("a")
    assert tokens(ask(engine, request(1, key="a"), request(2, key="b"))) == tokens(
        ask(open_engine(name), request(1), request(2))
    )


@every_engine
def test_it_outlives_an_event_loop_tells_its_state_and_is_closed(name: str) -> None:
    engine = open_engine(name)
    assert tokens(ask(engine, request(1))) == tokens(ask(engine, request(1)))
    state = engine.state()
    assert all(isinstance(word, str) and math.isfinite(number) for word, number in state.items())
    assert (state.get("running", 0), state.get("waiting", 0)) == (0, 0)
    asyncio.run(engine.close())

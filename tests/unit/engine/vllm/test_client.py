"""The words of vLLM's interface: what is asked, what is read, and whose fault a failure is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnwise.engine.vllm_client import ServerClient, ServerRequestError, ServerUnavailableError
from turnwise.errors import EngineError
from turnwise.types import GenerateRequest, Sampling

from .fake_server import STOP, FakeVllm


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    server = FakeVllm().start()
    yield server
    server.die()


def connect(server: FakeVllm, *, timeout_s: float = 60.0) -> ServerClient:
    return ServerClient(server.url, api_key="k", timeout_s=timeout_s)


def request(seed: int = 3, **sampling: Any) -> GenerateRequest:
    prompt = np.asarray([4, 5, 6], dtype=np.int32)
    return GenerateRequest(prompt_ids=prompt, sampling=Sampling(**sampling), seed=seed)


def test_what_is_sampled_from_is_said_whole(server: FakeVllm) -> None:
    asked = request(seed=2**70 + 5, temperature=0.7, top_k=9, top_p=0.8, max_new_tokens=11)
    asyncio.run(connect(server).generate(asked, {STOP, 2}))
    assert server.calls == ["/inference/v1/generate"]
    assert server.bodies == [
        {
            "token_ids": [4, 5, 6],
            "sampling_params": {
                "max_tokens": 11,
                "temperature": 0.7,
                "top_k": 9,
                "top_p": 0.8,
                "seed": 5,
                "stop_token_ids": [2, STOP],
                "ignore_eos": True,
                "detokenize": False,
                "logprobs": 0,
            },
        }
    ]


def test_a_reply_has_its_stop_token_and_a_logprob_for_each(server: FakeVllm) -> None:
    server.number, server.version = 0.5, "4"
    reply = asyncio.run(connect(server).generate(request(max_new_tokens=9), {STOP}))
    assert reply.token_ids.tolist()[-1] == STOP
    assert reply.logprobs == pytest.approx([-0.6] * 4)
    assert (reply.is_stopped, reply.is_aborted, reply.versions) == (True, False, ("4",))
    short = asyncio.run(connect(server).generate(request(max_new_tokens=2), {STOP}))
    assert (len(short.token_ids), short.is_stopped) == (2, False)


def test_a_greedy_token_was_the_only_one(server: FakeVllm) -> None:
    server.number = 0.5
    reply = asyncio.run(connect(server).generate(request(temperature=0.0, max_new_tokens=3), ()))
    assert reply.logprobs.tolist() == [0.0, 0.0, 0.0]


def test_alternatives_are_the_likeliest_whatever_was_sampled(server: FakeVllm) -> None:
    """One more is asked for: the sampled token takes a place, and may not be among the likeliest."""
    for num, expected in ((1, [90]), (2, [90, 91]), (3, [90, 91, None]), (4, [90, 91, None, 92])):
        reply = asyncio.run(connect(server).generate(replace(request(max_new_tokens=2), alternatives=num), ()))
        assert server.bodies[-1]["sampling_params"]["logprobs"] == num + 1
        assert reply.alternatives is not None
        for place, said in enumerate(reply.token_ids.tolist()):
            assert reply.alternatives.token_ids[place].tolist() == [said if one is None else one for one in expected]
    assert reply.alternatives.logprobs[0] == pytest.approx([-0.08, -0.09, -0.1, -np.inf])


def test_a_text_is_scored_from_its_second_token_on(server: FakeVllm) -> None:
    server.number = 0.25
    scores = asyncio.run(connect(server).score(np.asarray([8, 8, 9, 1], dtype=np.int32)))
    assert scores.tolist() == [-0.25] * 3


def test_a_refusal_is_told_in_the_servers_words(server: FakeVllm) -> None:
    server.refused["/inference/v1/generate"] = 400
    with pytest.raises(ServerRequestError, match=r"says 400: .*is refused"):
        asyncio.run(connect(server).generate(request(), ()))


def test_a_failure_inside_is_the_servers_own_only_where_it_is_ill(server: FakeVllm) -> None:
    server.refused["/resume"] = 500
    with pytest.raises(ServerRequestError, match="says 500"):
        asyncio.run(connect(server).resume())
    server.is_healthy = False
    with pytest.raises(ServerUnavailableError, match="says 500"):
        asyncio.run(connect(server).resume())


def test_a_server_that_is_gone_is_told_as_gone(server: FakeVllm) -> None:
    client = connect(server)
    server.die()
    with pytest.raises(ServerUnavailableError, match=r"/inference/v1/generate cannot be reached"):
        asyncio.run(client.generate(request(), ()))
    assert not asyncio.run(client.is_healthy())


def test_a_slow_reply_is_no_death(server: FakeVllm) -> None:
    server.may_answer.clear()
    with pytest.raises(EngineError, match=r"did not answer within engine\.request_timeout_s = 0\.05") as caught:
        asyncio.run(connect(server, timeout_s=0.05).generate(request(), ()))
    assert not isinstance(caught.value, ServerUnavailableError)


def test_it_outlives_event_loops(server: FakeVllm) -> None:
    client = connect(server)
    first, second = (asyncio.run(client.generate(request(max_new_tokens=2), ())) for _ in range(2))
    assert first.token_ids.tolist() == second.token_ids.tolist()
    asyncio.run(client.close())

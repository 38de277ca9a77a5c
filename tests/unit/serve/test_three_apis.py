"""Chat completions, Responses and messages over HTTP: tools, streams, stops, and that the tokens are those sampled."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import AsyncMock

import httpx
import numpy as np
import pytest

from turnwise.errors import RewardError
from turnwise.serve import episode as episode_module
from turnwise.serve.http import HttpRequest
from turnwise.serve.recorder import _APIS, ChatEndpoint
from turnwise.types import GenerateRequest

from ...clock import HANG_S
from .stage import KEY, OneEpisode, Script, perform, tool_template

CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
HELLO = [{"role": "user", "content": "what is there?"}]


async def chat(client: httpx.AsyncClient, messages: Any = HELLO, **body: Any) -> Any:
    reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages, **body})
    return reply.json()


def check_tokens(host: OneEpisode) -> None:
    """Every call has the tokens that the engine saw and sampled."""
    assert len(host.calls) == len(host.engine.requests)
    for call, request, completion in zip(host.calls, host.engine.requests, host.engine.completions, strict=True):
        np.testing.assert_array_equal(call.prompt_ids, request.prompt_ids)
        np.testing.assert_array_equal(call.tokens, completion.token_ids)


def test_an_episode_with_tools_is_one_row() -> None:
    num_turns = 20

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        messages: list[Any] = list(HELLO)
        for turn in range(num_turns):
            told = (await chat(client, messages, tools=[LOOK]))["choices"][0]
            assert told["finish_reason"] == "tool_calls"
            message = told["message"]
            assert message["content"] is None
            (call,) = message["tool_calls"]
            # As frameworks do that parse the arguments and write them again.
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": f"a door {turn}"}]
        told = (await chat(client, messages, tools=[LOOK]))["choices"][0]
        assert (told["message"]["content"], told["finish_reason"]) == ("a door", "stop")
        ids = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        assert len(set(ids)) == num_turns, "results could not be told apart"

    host = perform(Script(*[CALL] * num_turns, "a door"), scene)
    check_tokens(host)
    (row,) = host.rows()
    assert row.turn_indices.tolist() == list(range(num_turns + 1))


def test_calls_are_read_only_where_a_client_takes_them() -> None:
    two = CALL + CALL.replace("door", "key")

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        both = (await chat(client, tools=[LOOK]))["choices"][0]["message"]
        assert [json.loads(c["function"]["arguments"])["at"] for c in both["tool_calls"]] == ["door", "key"]
        one = (await chat(client, tools=[LOOK], parallel_tool_calls=False))["choices"][0]["message"]
        assert len(one["tool_calls"]) == 1
        for body in ({"tools": [LOOK], "tool_choice": "none"}, {}):
            text = (await chat(client, **body))["choices"][0]
            assert text["message"]["content"] == two
            assert text["finish_reason"] == "stop"

    check_tokens(perform(Script(two, two, two, two), scene))


@pytest.mark.parametrize(
    ("choice", "begun", "sampled"),
    [
        ("required", '<tool_call>\n{"name": "', 'look", "arguments": {}}</tool_call>'),
        ({"type": "function", "function": {"name": "look"}}, '{"name": "look", "arguments": ', "{}}</tool_call>"),
    ],
)
def test_a_call_that_is_required_is_begun_for_the_model_and_never_trained(
    choice: Any, begun: str, sampled: str
) -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        told = (await chat(client, tools=[LOOK], tool_choice=choice))["choices"][0]
        assert told["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}

    host = perform(Script(sampled), scene)
    (row,) = host.rows()
    assert tool_template().decode_reply(row.segment.token_ids[~row.segment.loss_mask]).endswith(begun)
    assert tool_template().decode_reply(row.segment.token_ids[row.segment.loss_mask]) == sampled


def test_a_stop_cuts_what_was_sampled_and_the_conversation_goes_on_over_it() -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        for given_back in ("take the", "take the key", "take the "):
            told = (await chat(client, stop=["key", "never"]))["choices"][0]
            assert (told["message"]["content"], told["finish_reason"]) == ("take the ", "stop")
            said = {"role": "assistant", "content": given_back}
            await chat(client, [*HELLO, said, {"role": "user", "content": "and?"}])

    host = perform(Script(*["take the key and go", "fine"] * 3), scene)
    first = host.calls[0]
    assert tool_template().decode_reply(first.tokens) == "take the key"
    # The engine was stopped there, and later prompts hold what it had sampled.
    np.testing.assert_array_equal(first.tokens, host.engine.completions[0].token_ids)
    seen = np.concatenate([first.prompt_ids, first.tokens])
    for request in host.engine.requests[1::2]:
        np.testing.assert_array_equal(request.prompt_ids[: len(seen)], seen)


class Deaf(Script):
    """Gives whole completions, and hears no wish to stop."""

    async def generate(self, request: GenerateRequest) -> Any:
        return await super().generate(
            GenerateRequest(prompt_ids=request.prompt_ids, sampling=request.sampling, seed=request.seed)
        )


def test_an_engine_that_does_not_stop_is_cut_and_one_that_does_not_tell_streams_in_one_piece() -> None:
    heard: list[str] = []

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        assert (await chat(client, stop="key"))["choices"][0]["message"]["content"] == "take the "
        heard.extend(await stream_chat(client))

    host = perform(Deaf("take the key and go", "look at the door"), scene)
    assert tool_template().decode_reply(host.calls[0].tokens) == "take the key"
    assert heard == ["look at the door"]


async def stream_chat(client: httpx.AsyncClient, **body: Any) -> list[str]:
    texts = []
    request = {"model": "m", "messages": HELLO, "stream": True, **body}
    async with client.stream("POST", "/v1/chat/completions", json=request) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts += [choice["delta"]["content"]] if choice["delta"].get("content") else []
    return texts


def test_a_stream_brings_tokens_one_by_one_and_holds_back_what_is_not_certain() -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        plain = await stream_chat(client)
        assert "".join(plain) == "look at the door ü"
        assert len(plain) > 3
        stopped = await stream_chat(client, stop=["the door"])
        assert "".join(stopped) == "look at "
        called = await stream_chat(client, tools=[LOOK])
        assert "".join(called) == "I look."

    check_tokens(perform(Script("look at the door ü", "look at the door", f"I look. {CALL}"), scene))


class Endless(Script):
    """Samples on until nobody listens any more."""

    def __init__(self) -> None:
        super().__init__()
        self.was_stopped = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Any:
        assert request.on_token is not None
        self.requests.append(request)
        try:
            while True:
                request.on_token(tool_template().encode_text("look").tolist()[0])
                await asyncio.sleep(0.001)
        finally:
            self.was_stopped.set()


def test_whoever_leaves_a_stream_ends_the_sampling_and_nothing_is_recorded() -> None:
    engine = Endless()

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        request = {"model": "m", "messages": HELLO, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=request) as reply:
            async for _line in reply.aiter_lines():
                break
        await engine.was_stopped.wait()

    assert perform(engine, scene).calls == []


def test_sampling_is_followed_for_serving_and_told_and_kept_for_training(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_module, "_told", set())
    wishes = {"temperature": 0.1, "top_p": 0.5, "seed": 7}

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        await chat(client, **wishes)
        await chat(client, **wishes)

    served = perform(Script("a", "a"), scene).engine.requests
    assert {(r.sampling.temperature, r.sampling.top_p) for r in served} == {(0.1, 0.5)}
    assert len({r.seed for r in served}) == 1
    assert caplog.text.count("a learner scores at temperature 0.7") == 2
    trained = perform(Script("a", "a"), scene, keeps_sampling=True).engine.requests
    assert {(r.sampling.temperature, r.sampling.top_p) for r in trained} == {(0.7, 1.0)}
    assert len({r.seed for r in trained}) == 2
    assert caplog.text.count("It is not followed") == 3


def test_the_log_says_once_what_is_not_followed_whatever_value_is_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_module, "_told", told := set())

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        for seed, temperature in ((10**400, 0.1), (1, 0.2), (2, 0.3)):
            assert "choices" in await chat(client, seed=seed, temperature=temperature)

    perform(Script("a", "a", "a"), scene, keeps_sampling=True)
    assert caplog.text.count("It is not followed") == len(told) == 2


def test_streams_that_begin_together_have_ids_of_their_own_by_which_they_are_rewarded() -> None:
    async def run() -> None:
        host = OneEpisode(Script("a door", "a key"))
        endpoint = ChatEndpoint(host, token=KEY, model_name="small")
        body = json.dumps({"messages": HELLO, "stream": True}).encode()

        async def stream() -> tuple[str, str]:
            asked = HttpRequest(method="POST", path="", headers={}, read_body=AsyncMock(return_value=body))
            reply = await endpoint._ask(host.episode, _APIS["/v1/chat/completions"], asked)
            assert reply.pieces is not None
            lines = [line for piece in [p async for p in reply.pieces] for line in piece.decode().splitlines()]
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            (name,) = {event["id"] for event in events}
            return name, "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

        said = dict(await asyncio.gather(stream(), stream()))
        assert sorted(said.values()) == ["a door", "a key"]
        for name, text in said.items():
            host.episode.add_reward({"call": name, "reward": len(text)})
        assert dict(host.episode.sub_rewards) == {call.step: len(call.response_text) for call in host.calls}

    asyncio.run(asyncio.wait_for(run(), HANG_S))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/responses", {"input": "what?"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}),
    ],
)
def test_a_reward_finds_its_call_by_the_whole_id_and_by_nothing_else(path: str, body: Any) -> None:
    ids: list[str] = []

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        ids.extend([(await client.post(path, json=body)).json()["id"] for _ in range(2)])

    episode = perform(Script("a", "a"), scene).episode
    episode.add_reward({"call": ids[1], "reward": 0.5})
    assert dict(episode.sub_rewards) == {1: 0.5}
    for other in ("1", "only-1", ids[1].replace("only", "other"), f"x{ids[1]}", ids[1].replace("only-1", "only-01")):
        with pytest.raises(RewardError, match="the id of a reply of this episode"):
            episode.add_reward({"call": other, "reward": 1})


def test_the_likeliest_tokens_are_told_where_they_are_asked_for() -> None:
    wishes = {"/v1/chat/completions": {"messages": HELLO, "logprobs": True}, "/v1/responses": {"input": "what?"}}
    heard = {}

    async def scene(_: str, client: httpx.AsyncClient) -> None:
        for path, body in wishes.items():
            reply = (await client.post(path, json={**body, "top_logprobs": 2})).json()
            is_chat = "choices" in reply
            heard[path] = (
                reply["choices"][0]["logprobs"]["content"] if is_chat else reply["output"][0]["content"][0]["logprobs"]
            )

    host = perform(Script("a door", "a door"), scene)
    assert [request.alternatives for request in host.engine.requests] == [2, 2]
    for call, entries in zip(host.calls, heard.values(), strict=True):
        assert [entry["logprob"] for entry in entries] == call.logprobs.tolist()
        assert "".join(entry["token"] for entry in entries) == "a door"
        likeliest = call.completion.alternatives
        assert likeliest is not None
        told = [[other["logprob"] for other in entry["top_logprobs"]] for entry in entries]
        assert told == likeliest.logprobs.tolist()
        assert {len(row) for row in told} == {2}


def test_an_engine_that_tells_no_others_refuses_to() -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        refused = await chat(client, logprobs=True, top_logprobs=2)
        assert "and of no other" in refused["error"]["message"]

    assert perform(Deaf("a door"), scene).calls == []


# --- the Responses API -----------------------------------------------------------------------------------------------


def test_the_responses_api_carries_tools_over_the_same_record() -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "what is there?"}]}]
        tools = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": True}]
        body = {"model": "m", "instructions": "Be brief.", "tools": tools, "store": False}
        first = (await client.post("/v1/responses", json={**body, "input": items})).json()
        said, call = first["output"]
        assert said["content"][0]["text"] == "I look."
        assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "look", {"at": "door"})
        items += [said, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "a door"}]
        second = (await client.post("/v1/responses", json={**body, "input": items})).json()
        assert (second["status"], second["output"][0]["content"][0]["text"]) == ("completed", "a door")
        refused = await client.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_1"})
        assert "send the whole conversation" in refused.json()["error"]["message"]

    host = perform(Script(f"I look. {CALL}", "a door"), scene)
    check_tokens(host)
    assert len(host.rows()) == 1


# --- Anthropic's messages API ----------------------------------------------------------------------------------------


def test_the_messages_api_carries_tools_over_the_same_record() -> None:
    async def scene(address: str, client: httpx.AsyncClient) -> None:
        tools = [{"name": "look", "description": "Looks.", "input_schema": PARAMETERS}]
        body = {"model": "m", "max_tokens": 100, "system": "Be brief.", "tools": tools}
        messages: list[Any] = [{"role": "user", "content": "what is there?"}]
        # Its clients write the key elsewhere.
        async with httpx.AsyncClient(base_url=address, headers={"x-api-key": "secret-key"}) as other:
            first = (await other.post("/v1/messages", json={**body, "messages": messages})).json()
        assert first["stop_reason"] == "tool_use"
        said, call = first["content"]
        assert (said["text"], call["name"], call["input"]) == ("I look.", "look", {"at": "door"})
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "a door"}]}
        messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = (
            await client.post("/v1/messages", json={**body, "messages": messages, "stop_sequences": ["!"]})
        ).json()
        assert (second["stop_reason"], second["stop_sequence"]) == ("stop_sequence", "!")
        assert second["content"] == [{"type": "text", "text": "a door"}]
        refused = await client.post("/v1/messages", json={"messages": messages})
        assert refused.status_code == 400
        assert refused.json()["type"] == "error"

    host = perform(Script(f"I look. {CALL}", "a door! and more"), scene)
    check_tokens(host)
    assert len(host.rows()) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "json_schema"}}),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}),
        ("/v1/messages", {"max_tokens": 5, "messages": HELLO, "output_format": {"type": "json_schema"}}),
    ],
)
def test_a_format_is_refused_and_told_what_to_do_instead(path: str, body: Any) -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        message = (await client.post(path, json=body)).json()["error"]["message"]
        assert "cannot hold a reply to a format. Ask for it in the " in message

    assert perform(Script(), scene).calls == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": 7}),
        ("/v1/responses", {"input": [{"type": "web_search_call"}]}),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}),
        ("/v1/responses", {"input": "x", "colour": 1}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("/v1/messages", {"max_tokens": 5, "messages": [], "top_k": 3}),
        ("/v1/messages", {"max_tokens": 5, "messages": HELLO, "output_format": {"type": "json_schema"}}),
        ("/v1/messages", {"max_tokens": 5, "messages": HELLO, "tool_choice": {"type": "any"}}),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {"type": "json_schema"}}),
    ],
)
def test_what_is_not_offered_is_refused_with_a_reason(path: str, body: Any) -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        reply = await client.post(path, json=body)
        assert reply.status_code == 400
        message = reply.json()["error"]["message"]
        assert message.endswith(".")
        assert "pydantic" not in message

    assert perform(Script(), scene).calls == []

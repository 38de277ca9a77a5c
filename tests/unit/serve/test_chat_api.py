"""The words of the chat API: what is understood, what is refused by name, and what a reply says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.serve.chat_requests import ChatRequest, read_object
from turnwise.serve.openai_chat_api import ChatWriter, read_chat
from turnwise.types import Completion, FinishReason, Message, ToolCall, ToolSchema

HELLO = [{"role": "user", "content": "hello"}]


def read(**body: Any) -> ChatRequest:
    return read_chat(json.dumps({"model": "any", "messages": HELLO, **body}).encode())


LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}


def test_what_a_client_asks_for_is_read() -> None:
    call = read(n=2, temperature=0, max_tokens=5, logprobs=True, stream=True, stream_options={"include_usage": True})
    assert call == ChatRequest(
        messages=(Message("user", "hello"),),
        agent="any",
        n=2,
        temperature=0.0,
        max_tokens=5,
        wants_logprobs=True,
        is_streamed=True,
        wants_usage=True,
    )
    assert read(max_completion_tokens=7).max_tokens == 7
    assert read() == ChatRequest(messages=(Message("user", "hello"),), agent="any")


def test_messages_come_in_the_shapes_that_clients_send() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    # As the client's own message object is written when it is appended to a conversation.
    reply = {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []}
    call = read(messages=[{"role": "developer", "content": "rules"}, {"role": "user", "content": parts}, reply])
    assert call.messages == (Message("system", "rules"), Message("user", "ab"), Message("assistant", "c"))


@pytest.mark.parametrize(
    "neutral",
    [
        {"stop": None},
        {"stop": []},
        {"stop": ""},
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"presence_penalty": 0},
        {"user": "me", "metadata": {"a": "b"}, "store": False},
    ],
)
def test_parameters_that_ask_for_nothing_pass(neutral: dict[str, Any]) -> None:
    assert read(**neutral) == read()


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"stop": [1]}, "stop", "expected a text or a list"),
        ({"tools": [{"type": "function"}]}, "tools.0", "expected {'type': 'function'"),
        ({"tools": [{"type": "web_search"}]}, "tools.0", "run elsewhere"),
        ({"tools": "all"}, "tools", "expected a list"),
        ({"tool_choice": "required"}, "tool_choice", "the tools are"),
        ({"tools": [LOOK], "tool_choice": "jump"}, "tool_choice", "the tools are"),
        ({"tools": [LOOK], "tool_choice": {"type": "function"}}, "tool_choice", "expected 'auto'"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": True}, "top_p", "valid number"),
        ({"presence_penalty": True}, "presence_penalty", "not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "given without logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "less than or equal to 20"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"temprature": 1}, "temprature", "not known"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"max_tokens": 0}, "max_tokens", "greater than 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 100_000}, "n", "less than or equal to"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": "hello"}, "messages", "expected a list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role", "expected system"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0", "expected a text or a list of parts"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages.0", "image"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}, "messages.0", "tool call"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(body: dict[str, Any], param: str, why: str) -> None:
    with pytest.raises(ServeError, match=why) as refused:
        read(**body)
    assert refused.value.param == param or refused.value.param.startswith(f"{param}.")
    assert refused.value.status == 400


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"n": NaN}', b"[" * 200_000, b'{"a": Infinity}'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ServeError, match="the body is"):
        read_object(body)


@given(st.binary(max_size=200) | st.text().map(lambda text: json.dumps({"messages": text}).encode()))
def test_no_body_raises_anything_else(body: bytes) -> None:
    with pytest.raises(ServeError):
        read_chat(body)


def make_response(*calls: ToolCall) -> Response:
    completion = Completion(
        token_ids=np.array([5, 6, 0], dtype=np.int32),
        behavior_logprobs=np.array([-0.5, -0.25, -0.125], dtype=np.float32),
        finish_reason=FinishReason.STOP,
        policy_version=4,
    )
    return Response(
        response_text="five six",
        message=Message("assistant", "" if calls else "five six", calls),
        observation="hello",
        before=None,
        context_ids=np.arange(7, dtype=np.int32),
        prompt_length=7,
        completion=completion,
        step=2,
    )


def make_writer(call: ChatRequest) -> ChatWriter:
    return ChatWriter(id="id", model="m", call=call, decode=lambda ids: f"<{ids[0]}>" if ids[0] else "")


def test_a_reply_says_what_was_sampled() -> None:
    told = make_writer(read(logprobs=True)).whole([make_response()])
    (choice,) = told["choices"]
    assert choice["message"] == {"role": "assistant", "content": "five six", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert [(t["token"], t["logprob"]) for t in choice["logprobs"]["content"]] == [
        ("<5>", -0.5),
        ("<6>", -0.25),
        ("", -0.125),
    ]
    assert told["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert told["system_fingerprint"] == "policy-4"
    assert make_writer(read()).whole([make_response()])["choices"][0]["logprobs"] is None


def test_a_reply_that_calls_tools_says_so() -> None:
    told = make_writer(read(tools=[LOOK])).whole([make_response(ToolCall("look", '{"at": 1}', "abc"))])
    (choice,) = told["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "abc", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    ]


def test_a_stream_ends_with_the_calls_the_reasons_and_the_usage() -> None:
    call = read(tools=[LOOK], stream=True, stream_options={"include_usage": True})
    events = make_writer(call).end([make_response(ToolCall("look", "{}", "abc"))]).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "look"
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]] == [None, "tool_calls"]
    assert chunks[-1]["usage"]["total_tokens"] == 10
    assert b"usage" not in make_writer(read(stream=True)).end([make_response()])


def test_tools_and_their_results_are_read() -> None:
    call = read(
        tools=[LOOK],
        tool_choice={"type": "function", "function": {"name": "look"}},
        parallel_tool_calls=False,
        stop="!",
        top_p=0.5,
        seed=3,
        messages=[
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "a door"},
        ],
    )
    assert call.messages[1:] == (
        Message("assistant", "", (ToolCall("look", '{"at": 1}', "a"),)),
        Message("tool", "a door", (), "a"),
    )
    assert call.tools == (ToolSchema("look", "Looks.", '{"type": "object"}'),)
    assert (call.tool_choice, call.takes_many_calls, call.stop, call.top_p, call.seed) == (
        "look",
        False,
        ("!",),
        0.5,
        3,
    )

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
from turnwise.serve.chat_api import ChatCall, ChatReply, read_chat, read_object
from turnwise.types import Completion, FinishReason, Message

HELLO = [{"role": "user", "content": "hello"}]


def read(**body: Any) -> ChatCall:
    return read_chat(json.dumps({"model": "any", "messages": HELLO, **body}).encode())


def test_what_a_client_asks_for_is_read() -> None:
    call = read(n=2, temperature=0, max_tokens=5, logprobs=True, stream=True, stream_options={"include_usage": True})
    assert call == ChatCall(
        messages=(Message("user", "hello"),),
        n=2,
        temperature=0.0,
        max_tokens=5,
        wants_logprobs=True,
        is_streamed=True,
        wants_usage=True,
    )
    assert read(max_completion_tokens=7).max_tokens == 7
    assert read() == ChatCall(messages=(Message("user", "hello"),))


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
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"top_p": 1.0},
        {"presence_penalty": 0},
        {"seed": 3, "user": "me", "metadata": {"a": "b"}, "store": False},
    ],
)
def test_parameters_that_ask_for_nothing_pass(neutral: dict[str, Any]) -> None:
    assert read(**neutral) == read()


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"stop": ["\n"]}, "stop", "end of turn"),
        ({"tools": [{"type": "function"}]}, "tools", "Describe tools in the messages"),
        ({"top_p": 0.9}, "top_p", "not supported"),
        ({"top_p": True}, "top_p", "not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"temprature": 1}, "temprature", "not known"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"max_tokens": 0}, "max_tokens", "greater than 0"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 100_000}, "n", "less than or equal to"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hello"}, "messages", "valid list"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'user'"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "valid string"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages.0.content", "surrogates not allowed"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}, "messages.0.tool_calls", "at most 0"),
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


def make_reply(call: ChatCall) -> ChatReply:
    completion = Completion(
        token_ids=np.array([5, 6, 0], dtype=np.int32),
        behavior_logprobs=np.array([-0.5, -0.25, -0.125], dtype=np.float32),
        finish_reason=FinishReason.STOP,
        policy_version=4,
    )
    response = Response(
        response_text="five six",
        message=Message("assistant", "five six"),
        observation="hello",
        before=None,
        context_ids=np.arange(7, dtype=np.int32),
        prompt_length=7,
        completion=completion,
        step=2,
    )
    return ChatReply(
        id="id", model="m", call=call, responses=[response], decode=lambda ids: f"<{ids[0]}>" if ids[0] else ""
    )


def test_a_reply_says_what_was_sampled() -> None:
    told = make_reply(read(logprobs=True)).to_json()
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
    assert make_reply(read()).to_json()["choices"][0]["logprobs"] is None


def test_a_stream_says_the_same_in_events() -> None:
    events = make_reply(read(stream=True, stream_options={"include_usage": True})).to_events().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == "five six"
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]] == [None, "stop"]
    assert chunks[-1]["usage"]["total_tokens"] == 10
    assert b"usage" not in make_reply(read(stream=True)).to_events()

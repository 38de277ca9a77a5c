"""Half a character of a client, which JSON can spell and no tokenizer takes, becomes U+FFFD, wherever it stands."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from turnwise.errors import ServeError
from turnwise.serve.chat_requests import read_object
from turnwise.types import GenerateRequest

from .stage import Script, perform, tool_template

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HALF, WHOLE = "a\ud800b", "a\ufffdb"
SCHEMA = {"type": "object", "properties": {HALF: {"type": "string", "description": HALF}}}
ARGUMENTS = {HALF: [{HALF: HALF}]}
TOOL = {"name": HALF, "description": HALF}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": HALF}], "model": HALF, "stop": [HALF], "metadata": {HALF: HALF}}),
    (
        CHAT,
        {
            "tools": [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}],
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": HALF}]},
                {"role": "user", "content": "x"},
                {
                    "role": "assistant",
                    "content": HALF,
                    "tool_calls": [
                        {"id": HALF, "function": {"name": HALF, "arguments": json.dumps(ARGUMENTS)}},
                        {"id": "b", "function": {"name": HALF, "arguments": ARGUMENTS}},
                    ],
                },
                {"role": "tool", "tool_call_id": HALF, "name": HALF, "content": HALF},
                {"role": "assistant", "content": HALF},
            ],
        },
    ),
    (
        RESPONSES,
        {
            "instructions": HALF,
            "tools": [{"type": "function", **TOOL, "parameters": SCHEMA}],
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": HALF}]},
                {"type": "function_call", "call_id": HALF, "name": HALF, "arguments": json.dumps(ARGUMENTS)},
                {"type": "function_call_output", "call_id": HALF, "output": HALF},
            ],
        },
    ),
    (RESPONSES, {"input": HALF}),
    (
        MESSAGES,
        {
            "max_tokens": 9,
            "system": HALF,
            "stop_sequences": [HALF],
            "tools": [{**TOOL, "input_schema": SCHEMA}],
            "messages": [
                {"role": "user", "content": HALF},
                {"role": "assistant", "content": [{"type": "tool_use", "id": HALF, "name": HALF, "input": ARGUMENTS}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": HALF, "content": HALF}]},
            ],
        },
    ),
]


def whole(value: Any) -> Any:
    """The same with the replacement character, also in texts that are JSON themselves."""
    return json.loads(json.dumps(value).replace(r"\\ud800", r"\ufffd").replace(r"\ud800", r"\ufffd"))


def seen(path: str, body: dict[str, Any], *, is_streamed: bool) -> list[GenerateRequest]:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        reply = await client.post(path, content=json.dumps({**body, "stream": is_streamed}).encode())
        assert reply.status_code == 200, reply.text

    host = perform(Script("a door"), scene)
    assert host.differing() == []
    return host.engine.requests


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=range(len(BODIES)))
def test_half_a_character_is_replaced_and_what_the_engine_saw_is_recorded(
    path: str, body: dict[str, Any], is_streamed: bool
) -> None:
    (request,) = seen(path, body, is_streamed=is_streamed)
    (expected,) = seen(path, whole(body), is_streamed=is_streamed)
    assert request.prompt_ids.tolist() == expected.prompt_ids.tolist()
    assert request.asked == expected.asked
    assert WHOLE in tool_template().decode_reply(request.prompt_ids)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"a": "\\ud800"}', {"a": "\ufffd"}),
        (b'{"\\uDC00\\uD800": 1}', {"\ufffd\ufffd": 1}),
        (b'{"a": ["\\ud83d\\ude00", {"\\ud83d": null}]}', {"a": ["\U0001f600", {"\ufffd": None}]}),
        (b'{"a": "\xed\xa0\x80"}', {"a": "\ufffd"}),
        ('{"a": "\\ud800"}'.encode("utf-16"), {"a": "\ufffd"}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
    ],
)
def test_an_object_is_read_in_whole_characters(body: bytes, read: dict[str, Any]) -> None:
    assert read_object(body) == read


def test_depth_with_half_a_character_is_refused() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        with pytest.raises(ServeError, match="not JSON"):
            read_object(('{"a": ' + opening * 990 + '"\\ud800"' + closing * 990 + "}").encode())

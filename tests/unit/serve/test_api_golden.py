"""Requests to the three chat APIs and their answers, as recorded in `tests/golden/chat_apis.json`.

`python -m tests.unit.serve.test_api_golden` writes the file again.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from .stage import Script, perform

GOLDEN = Path(__file__).parents[2] / "golden/chat_apis.json"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
REPLIES = ("a door", 'look <tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>')
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
FLAT = {"type": "function", "name": "look", "description": "Looks.", "parameters": PARAMETERS}
CUSTOM = {"name": "look", "description": "Looks.", "input_schema": PARAMETERS}
HELLO = [{"role": "user", "content": "what is there?"}]
ANSWERED = [*HELLO, {"role": "assistant", "content": "a"}]
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": HELLO},
    RESPONSES: {"model": "m", "input": "what is there?"},
    MESSAGES: {"model": "m", "max_tokens": 50, "messages": HELLO},
}
SHARED: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"temperature": 0.5, "top_p": 0.9},
    {"temperature": 9},
    {"temperature": "hot"},
    {"top_p": 0},
    {"model": 3},
    {"metadata": {"a": 1}, "service_tier": "auto"},
    {"user": "me", "store": True},
    {"surprise": 1},
    {"surprise": None},
    {"stream": "yes"},
    {"tools": 3},
    {"tools": [3]},
    {"tools": [{"type": "web_search"}]},
    {"tools": [{"type": "function"}]},
    {"tool_choice": 7},
    {"tool_choice": "look"},
    {"n": 2},
    {"seed": 3},
    {"thinking": {"type": "enabled"}},
    {"response_format": {"type": "json_object"}},
    {"top_k": 4},
    {"stop": ["door"]},
    {"truncation": "auto"},
    {"background": True},
    {"background": 0},
]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"tools": [LOOK]},
        {"tools": [LOOK], "stream": True, "stream_options": {"include_usage": True}},
        {"tools": [LOOK], "tool_choice": "none"},
        {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "jump"}}},
        {"tools": [LOOK], "parallel_tool_calls": False},
        {"n": 2, "stream": True},
        {"n": 0},
        {"logprobs": True, "top_logprobs": 2},
        {"top_logprobs": 2},
        {"logprobs": True, "stream": True},
        {"max_tokens": 5, "max_completion_tokens": 2},
        {"max_tokens": 0},
        {"stop": 4},
        {"functions": [], "function_call": "auto", "presence_penalty": 0, "logit_bias": {}},
        {"presence_penalty": 1},
        {"presence_penalty": False},
        {"functions": [LOOK]},
        {"response_format": {"type": "text"}},
        {"messages": []},
        {"messages": [{"role": "judge", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
        {"messages": ANSWERED},
        {"messages": ANSWERED, "stream": True},
    ],
    RESPONSES: [
        {"tools": [FLAT]},
        {"tools": [FLAT], "stream": True},
        {"tools": [FLAT], "tool_choice": {"type": "function", "name": "look"}},
        {"tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False},
        {"instructions": "Be brief.", "max_output_tokens": 2},
        {"max_output_tokens": 2, "stream": True},
        {"max_output_tokens": 0},
        {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
        {"include": ["message.output_text.logprobs"]},
        {"text": {"format": {"type": "text"}}},
        {"text": {"format": {"type": "json_object"}}},
        {"previous_response_id": "resp_1"},
        {"conversation": "c"},
        {"prompt": {"id": "p"}},
        {"input": 3},
        {"input": [{"type": "computer_call"}]},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "what is there?"}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "a key"},
            ],
            "tools": [FLAT],
        },
    ],
    MESSAGES: [
        {"tools": [CUSTOM]},
        {"tools": [CUSTOM], "stream": True},
        {"tools": [CUSTOM], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "look"}},
        {"tools": [CUSTOM], "tool_choice": {"type": "none"}},
        {"tools": [CUSTOM], "tool_choice": {"type": "some"}},
        {"system": "Be brief."},
        {"system": [{"type": "text", "text": "Be brief."}]},
        {"system": 3},
        {"max_tokens": None},
        {"max_tokens": 2},
        {"stop_sequences": ["door"]},
        {"stop_sequences": "door"},
        {"thinking": {"type": "disabled"}},
        {"output_format": {"type": "json"}},
        {"mcp_servers": []},
        {"messages": 3},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {
            "messages": [
                *HELLO,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "a key"},
                        {"type": "text", "text": "and?"},
                    ],
                },
            ],
            "tools": [CUSTOM],
        },
        {"messages": ANSWERED, "stream": True},
    ],
}


def record() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cases = [(path, change) for path in BASE for change in [*SHARED, *VARIANTS[path]]]
    for number, reply in enumerate(REPLIES):

        async def scene(_: str, client: httpx.AsyncClient, number: int = number) -> None:
            for path, change in cases:
                answer = await client.post(path, json={**BASE[path], **change})
                text = re.sub(r'("created(?:_at)?": ?)\d+', r"\g<1>0", answer.text)
                if number == 0 or answer.status_code == HTTPStatus.OK:
                    found.append(
                        {"path": path, "change": change, "reply": number, "status": answer.status_code, "body": text}
                    )

        perform(Script(*[reply] * 2 * len(cases)), scene)
    return found


def test_requests_and_answers_are_as_recorded() -> None:
    expected = json.loads(GOLDEN.read_text("utf-8"))
    for now, before in zip(record(), expected, strict=True):
        assert now == before


if __name__ == "__main__":
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(each, ensure_ascii=False) for each in record()) + "\n]\n", "utf-8")

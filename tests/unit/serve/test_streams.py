"""A stream, put together again, is the plain answer: for every API, with and without tools, and for every fault."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any

import httpx
import pytest

from turnwise.context.template import HFChatTemplate
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import EngineError
from turnwise.models.tiny import fit_tokenizer
from turnwise.types import Completion, GenerateRequest, Message

from .stage import Script, perform, tool_template

pytestmark = pytest.mark.slow

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
HELLO = {"role": "user", "content": "what is there?"}
CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
REPLIES = {
    "no tool": ["a door", " a door \n", CALL, "a door <tool", "ü 🙂", ""],
    "auto": [
        f"I look. {CALL}",
        f"\n\n I look.\n{CALL}",
        f"{CALL} and then",
        f"I look. {CALL}\n{CALL} and then {CALL} ",
        "I look \n",
        " I look",
        "<tool_call> is how I call",
        f"{CALL[:-3]} is no call",
        "a door <tool",
    ],
    "required": ['look", "arguments": {"at": "door"}}</tool_call>', 'look", "arguments": 7}</tool_call>', "look"],
    "named": ['{"at": "door"}}</tool_call>', '{"at": "door"}}</tool_call> and more', '{"at"', "no call", ""],
}


class Breaks(ScriptedEngine):
    """Ends with a fault after some tokens."""

    def __init__(self, num_tokens: int, fault: Exception | None = None) -> None:
        super().__init__(lambda _: [], stop_ids=frozenset())
        self._num_tokens = num_tokens
        self._fault = fault or EngineError("the engine is broken.")

    async def generate(self, request: GenerateRequest) -> Completion:
        for token in tool_template().encode_text("a door")[: self._num_tokens].tolist():
            if request.on_token is not None:
                request.on_token(token)
        raise self._fault


class WithoutAlternatives(Script):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await super().generate(
            GenerateRequest(prompt_ids=request.prompt_ids, sampling=request.sampling, seed=0, on_token=request.on_token)
        )


@cache
def template_without_tools() -> HFChatTemplate:
    tokenizer = fit_tokenizer(["what is there? a door"], 300)
    tokenizer.chat_template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    return HFChatTemplate(tokenizer)


def body_of(path: str, choice: str, messages: Any = (HELLO,), **more: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": "look", "description": "Looks."}
    body: dict[str, Any] = {"input" if path == RESPONSES else "messages": list(messages), **more}
    if path == MESSAGES:
        body["max_tokens"] = 200
    if choice == "no tool":
        return body
    if path == MESSAGES:
        named: Any = {"type": "tool", "name": "look"}
        choices = {"auto": {"type": "auto"}, "required": {"type": "any"}, "named": named}
        return {**body, "tools": [{**function, "input_schema": PARAMETERS}], "tool_choice": choices[choice]}
    function = {**function, "parameters": PARAMETERS}
    if path == RESPONSES:
        named, tool = {"type": "function", "name": "look"}, {"type": "function", **function}
    else:
        named, tool = {"type": "function", "function": {"name": "look"}}, {"type": "function", "function": function}
    return {**body, "tools": [tool], "tool_choice": named if choice == "named" else choice}


# --- what comes back -------------------------------------------------------------------------------------------------


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]


def joined_chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    ends = []
    for event in events:
        for choice in event["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                message.setdefault("tool_calls", []).append({k: v for k, v in call.items() if k != "index"})
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    if "tool_calls" in message:
        message["content"] = message["content"] or None
    (end,) = ends
    return {"message": message, "finish_reason": end}


def joined_responses(events: list[dict[str, Any]]) -> list[Any]:
    """By the events alone, and as the last of them says it."""
    items: dict[int, Any] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                items[event["output_index"]] = deepcopy(event["item"])
            case "response.content_part.added":
                items[event["output_index"]]["content"].append({**event["part"], "logprobs": []})
            case "response.output_text.delta":
                items[event["output_index"]]["content"][0]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
    joined = [{**items[place], "status": "completed"} for place in sorted(items)]
    assert joined == events[-1]["response"]["output"]
    return joined


def joined_messages(events: list[dict[str, Any]]) -> dict[str, Any]:
    blocks: dict[int, Any] = {}
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "input": ""}
            case "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["text" if "text" in delta else "input"] += delta.get("text", "") + delta.get(
                    "partial_json", ""
                )
    content: list[Any] = []
    for block in blocks.values():
        given = block.pop("input")
        content.append({**block, "input": json.loads(given)} if block["type"] == "tool_use" else block)
    (end,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    return {"content": content, **end}


def joined(path: str, reply: httpx.Response) -> Any:
    events = events_of(reply)
    return {CHAT: joined_chat, RESPONSES: joined_responses, MESSAGES: joined_messages}[path](events)


def plain(path: str, reply: httpx.Response) -> Any:
    told = reply.json()
    if path == CHAT:
        return {key: told["choices"][0][key] for key in ("message", "finish_reason")}
    return told["output"] if path == RESPONSES else {k: told[k] for k in ("content", "stop_reason", "stop_sequence")}


def is_refused(reply: httpx.Response) -> bool:
    return any(event.get("type") == "error" or "error" in event for event in events_of(reply))


def ask_both(engine: Any, path: str, body: dict[str, Any], **options: Any) -> list[httpx.Response]:
    """One call, plain and streamed, each in an episode of its own."""
    replies: list[httpx.Response] = []
    for is_streamed in (False, True):

        async def scene(_: str, client: httpx.AsyncClient, is_streamed: bool = is_streamed) -> None:
            replies.append(await client.post(path, json={**body, "stream": is_streamed}))

        host = perform(engine(), scene, **options)
        assert replies[-1].status_code != 200 or is_refused(replies[-1]) or host.differing() == []
    return replies


# --- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(("choice", "said"), [(choice, said) for choice, all_ in REPLIES.items() for said in all_])
def test_a_stream_is_the_plain_answer(path: str, choice: str, said: str) -> None:
    whole, streamed = ask_both(lambda: Script(said), path, body_of(path, choice))
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text + streamed.text
    assert joined(path, streamed) == plain(path, whole)


FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "broken before a token": (lambda: Breaks(0), {}),
    "broken after a token": (lambda: Breaks(2), {}),
    "crashed after a token": (lambda: Breaks(2, ZeroDivisionError("by 0")), {}),
    "no room": (lambda: Script("a door"), {"messages": [{"role": "user", "content": "door " * 100_000}]}),
    "a call in a template without tools": (lambda: Script("a door"), {}),
    "alternatives": (lambda: WithoutAlternatives("a door"), {"logprobs": True, "top_logprobs": 2}),
}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("choice", ["no tool", "auto", "required", "named"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_the_same_in_a_stream(path: str, choice: str, fault: str) -> None:
    engine, more = FAULTS[fault]
    options = {"template": template_without_tools()} if "template" in fault else {}
    if "logprobs" in more:
        more = {} if path == MESSAGES else {"top_logprobs": 2} if path == RESPONSES else more
    elif more and path == RESPONSES:
        more = {"input": more["messages"]}
    whole, streamed = ask_both(engine, path, body_of(path, choice, **more), **options)
    is_harmless = path == MESSAGES if fault == "alternatives" else "template" in fault and choice == "no tool"
    if is_harmless:
        assert joined(path, streamed) == plain(path, whole)
        return
    assert whole.status_code >= 400
    assert error_in(path, streamed) == error_in(path, whole)
    assert streamed.status_code in (200, whole.status_code)


def error_in(path: str, reply: httpx.Response) -> dict[str, Any]:
    """What all three APIs say of a fault, in the head and in a stream that has begun."""
    if reply.status_code != 200:
        told = reply.json()["error"]
    else:
        (event,) = [event for event in events_of(reply) if "error" in event or event.get("type") == "error"]
        told = event.get("error", event)
    if path == MESSAGES:
        return {key: told[key] for key in ("type", "message")}
    if path == RESPONSES:
        code = told["code"] or told["type"]
        return {"message": told["message"], "code": code, "param": told["param"]}
    return told


# --- replies that the client begins ----------------------------------------------------------------------------------


def said_in(path: str, told: Any) -> str:
    if path == CHAT:
        return told["message"]["content"] or ""
    parts = told["content"] if path == MESSAGES else [part for item in told for part in item.get("content", [])]
    return "".join(part.get("text", "") for part in parts)


def begun_with(prefill: str) -> list[dict[str, Any]]:
    return [HELLO, {"role": "assistant", "content": prefill}]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("choice", "prefill", "sampled", "told", "has_call"),
    [
        ("no tool", "I look", " at the door \n", " at the door \n", False),
        ("no tool", " I look ", "I look", "I look", False),
        ("no tool", "", "a door", "a door", False),
        ("auto", "I look", f" now. {CALL}", " now.", True),
        ("auto", " I look ", f"now {CALL}", "now", True),
        ("auto", "I look ", CALL, "", True),
        ("auto", "I look ", "at it", "at it", False),
        ("auto", CALL[:20], CALL[20:], "", True),
        ("auto", "<tool_call> is ", "what I write", "what I write", False),
    ],
)
def test_a_reply_goes_on_where_the_client_began_it(
    path: str, choice: str, prefill: str, sampled: str, told: str, has_call: bool
) -> None:
    whole, streamed = ask_both(lambda: Script(sampled), path, body_of(path, choice, begun_with(prefill)))
    answer = plain(path, whole)
    assert joined(path, streamed) == answer
    assert said_in(path, answer) == told
    assert ('"look"' in whole.text.replace('"tools": [{"type": "function", "name": "look"', "")) is has_call


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_what_the_client_began_is_seen_and_never_trained_and_the_conversation_goes_on_over_it(path: str) -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        reply = await client.post(path, json=body_of(path, "no tool", begun_with("I look")))
        said = "I look" + said_in(path, plain(path, reply))
        messages = [HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        await client.post(path, json=body_of(path, "no tool", messages))

    host = perform(Script(" at the door", "a key"), scene)
    assert host.differing() == []
    (row,) = host.rows()
    segment, template = row.segment, tool_template()
    assert template.decode_reply(segment.token_ids[segment.loss_mask & (segment.turn_ids == 0)]) == " at the door"
    first = template.encode_prompt([Message("user", HELLO["content"])])
    assert segment.token_ids[: len(first)].tolist() == first.tolist()
    begun = template.encode_text("I look")
    assert segment.token_ids[len(first) : len(first) + len(begun)].tolist() == begun.tolist()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("choice", "messages", "prefix", "why"),
    [
        ("named", begun_with("I look"), "", "begins with a call"),
        ("required", begun_with("I look"), "", "begins with a call"),
        ("no tool", begun_with("I look"), "<answer>", "context.answer.forced_prefix = '<answer>'"),
        ("no tool", begun_with("I look")[1:], "", "the only one"),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(path: str, choice: str, messages: Any, prefix: str, why: str) -> None:
    for reply in ask_both(lambda: Script("a door"), path, body_of(path, choice, messages), prefix=prefix):
        assert reply.status_code == 400
        assert why in reply.json()["error"]["message"]
    begun = body_of(path, "no tool", begun_with("<answer>I"))
    whole, streamed = ask_both(lambda: Script(" look"), path, begun, prefix="<answer>")
    assert said_in(path, joined(path, streamed)) == said_in(path, plain(path, whole)) == " look"


def test_a_reply_does_not_begin_with_calls_of_the_client() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    body = body_of(CHAT, "auto", [HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}])
    for reply in ask_both(lambda: Script("a door"), CHAT, body):
        assert reply.status_code == 400
        assert "calls tools; expected the results of its calls" in reply.json()["error"]["message"]

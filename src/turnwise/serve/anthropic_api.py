"""Anthropic messages API: parses requests, formats replies and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, PositiveInt

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.infra.parsing import parse_json
from turnwise.serve.chat_requests import (
    FORMAT_ALTERNATIVE,
    Body,
    ChatRequest,
    Parameters,
    ReplyWriter,
    check_choice,
    is_cut,
    read_messages,
    read_object,
    read_stop,
    read_tools,
    wrong,
)
from turnwise.serve.episode import event


class _MessagesBody(Body):
    max_tokens: PositiveInt
    temperature: float | None = Field(default=None, ge=0, le=1)


_PARAMETERS = Parameters(
    body=_MessagesBody,
    structured=("messages", "system", "tools", "tool_choice", "stop_sequences"),
    ignored=("betas", "metadata", "service_tier", "container", "cache_control"),
    neutral={
        "thinking": ({"type": "disabled"},),
        "output_format": (),
        "output_config": (),
        "top_k": (),
        "mcp_servers": (),
    },
    alternatives={"output_format": FORMAT_ALTERNATIVE, "output_config": FORMAT_ALTERNATIVE},
)


def read_messages_call(body: bytes) -> ChatRequest:
    content = read_object(body)
    given = _PARAMETERS.parse(content)
    tools = read_tools(_as_functions(content.get("tools")))
    choice = content.get("tool_choice") or {"type": "auto"}
    messages = _read_conversation(content.get("messages"))
    if content.get("system"):
        messages.insert(0, {"role": "system", "content": _text_of(content["system"], "system")})
    return ChatRequest(
        messages=read_messages(messages),
        agent=given.model or "",
        tools=tools,
        tool_choice=check_choice(_read_choice(choice), tools),
        takes_many_calls=not (isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use")),
        stop=read_stop(content.get("stop_sequences"), "stop_sequences"),
        temperature=given.temperature,
        top_p=given.top_p,
        max_tokens=given.max_tokens,
        is_streamed=bool(given.stream),
    )


def _read_choice(given: object) -> str:
    match given:
        case {"type": "auto" | "none" as kind}:
            return str(kind)
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": str(name)}:
            return name
    raise wrong("tool_choice", given, "{'type': 'auto'}, 'any', 'none', or 'tool' with a name")


def _as_functions(given: object) -> object:
    if not isinstance(given, list):
        return given
    return [
        {
            "type": "function" if tool.get("type", "custom") == "custom" else tool["type"],
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
        }
        if isinstance(tool, Mapping)
        else tool
        for tool in given
    ]


def _read_conversation(given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        return []
    messages: list[dict[str, Any]] = []
    for place, message in enumerate(given):
        where = f"messages.{place}"
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
            raise wrong(where, message, "user or assistant")
        content = message.get("content")
        if isinstance(content, list):
            messages += _read_blocks(content, message["role"], where)
        else:
            messages.append({"role": message["role"], "content": content})
    return messages


def _read_blocks(blocks: Sequence[Any], role: str, where: str) -> list[dict[str, Any]]:
    """Results of tools become messages of their own, before what the user says beside them."""
    texts, calls, results = [], [], []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "tool_use", "id": identity, "name": name, "input": arguments}:
                calls.append({"id": identity, "function": {"name": name, "arguments": arguments}})
            case {"type": "tool_result", "tool_use_id": identity, **rest}:
                text = _text_of(rest.get("content") or "", where)
                results.append({"role": "tool", "content": text, "tool_call_id": identity})
            case {"type": "thinking" | "redacted_thinking"}:
                pass
            case _:
                kind = block.get("type") if isinstance(block, Mapping) else block
                raise wrong(where, kind, "text, tool_use or tool_result")
    said = {"role": role, "content": "".join(texts), **({"tool_calls": calls} if calls else {})}
    return [*results, said] if texts or calls or not results else results


def _text_of(content: object, where: str) -> str:
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [block.get("text") if isinstance(block, Mapping) else None for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise wrong(where, content, "text")
    return "".join(text for text in texts if text)


@dataclass(slots=True, kw_only=True)
class MessagesWriter(ReplyWriter):
    """Formats the reply to one request."""

    num_blocks: int = 0
    is_open: bool = False

    def whole(self, responses: Sequence[Response]) -> dict[str, Any]:
        (response,) = responses
        said = self.call.continuation(response.message.text)
        content: list[dict[str, Any]] = [{"type": "text", "text": said}] if said else []
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": parse_json(call.arguments)}
            for call in response.message.tool_calls
        ]
        return {**self._about(response.prompt_length, len(response.tokens)), "content": content, **self._end(response)}

    # --- as server-sent events -----------------------------------------------------------------------------------

    def begin(self) -> bytes:
        begun = {**self._about(0, 0), "content": [], "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=begun)

    def delta(self, number: int, text: str) -> bytes:
        begun = b"" if self.is_open else self._begin_block({"type": "text", "text": ""})
        return begun + self._grow({"type": "text_delta", "text": text})

    def end(self, responses: Sequence[Response]) -> bytes:
        (response,) = responses
        events = [self._end_block()]
        for call in response.message.tool_calls:
            events.append(self._begin_block({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}))
            events.append(self._grow({"type": "input_json_delta", "partial_json": call.arguments}))
            events.append(self._end_block())
        usage = {"input_tokens": response.prompt_length, "output_tokens": len(response.tokens)}
        events.append(_event("message_delta", delta=self._end(response), usage=usage))
        return b"".join(events) + _event("message_stop")

    def fail(self, error: ServeError) -> bytes:
        return _event("error", error={"type": error.kind, "message": str(error)})

    def _begin_block(self, block: Mapping[str, Any]) -> bytes:
        self.is_open = True
        return _event("content_block_start", index=self.num_blocks, content_block=block)

    def _grow(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", index=self.num_blocks, delta=delta)

    def _end_block(self) -> bytes:
        if not self.is_open:
            return b""
        self.is_open = False
        self.num_blocks += 1
        return _event("content_block_stop", index=self.num_blocks - 1)

    def _about(self, num_prompt: int, num_sampled: int) -> dict[str, Any]:
        usage = {"input_tokens": num_prompt, "output_tokens": num_sampled}
        return {"id": f"msg_{self.id}", "type": "message", "role": "assistant", "model": self.model, "usage": usage}

    def _end(self, response: Response) -> dict[str, Any]:
        text = self.decode(response.tokens) if self.call.stop else ""
        stopped_by = next((word for word in self.call.stop if word in text), None)
        if response.message.tool_calls:
            reason = "tool_use"
        elif stopped_by is not None:
            reason = "stop_sequence"
        else:
            reason = "max_tokens" if is_cut(response) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stopped_by}


def _event(kind: str, **content: Any) -> bytes:
    return event({"type": kind, **content}, kind)

"""OpenAI Responses API: parses requests, formats replies and streams.

Requests contain the complete conversation: nothing is stored between calls, so `previous_response_id` raises an error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, PositiveInt

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.infra.parsing import parse_json
from turnwise.serve.chat_requests import (
    Body,
    ChatRequest,
    Parameters,
    ReplyWriter,
    check_choice,
    is_cut,
    read_messages,
    read_object,
    read_tools,
    token_logprobs,
    wrong,
)
from turnwise.serve.episode import event
from turnwise.types import MAX_ALTERNATIVES, ToolSchema

_STATELESS = "Nothing is kept between calls: send the whole conversation as input."


class _ResponsesBody(Body):
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    parallel_tool_calls: bool | None = None


_PARAMETERS = Parameters(
    body=_ResponsesBody,
    structured=("include", "input", "tools", "tool_choice"),
    ignored=(
        "max_tool_calls",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    ),
    neutral={
        "background": (False,),
        "text": ({"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": "medium"}, {}),
        "truncation": ("disabled",),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
    },
    alternatives={
        "text": "The engine samples freely and cannot hold a reply to a format. Ask for it in the input.",
        "previous_response_id": _STATELESS,
        "conversation": _STATELESS,
    },
)


def read_response_call(body: bytes) -> ChatRequest:
    content = read_object(body)
    given = _PARAMETERS.parse(content)
    tools = read_tools(content.get("tools"))
    messages = _read_input(content.get("input"))
    if given.instructions:
        messages.insert(0, {"role": "system", "content": given.instructions})
    return ChatRequest(
        messages=read_messages(messages, "input"),
        agent=given.model or "",
        tools=tools,
        tool_choice=check_choice(_read_choice(content.get("tool_choice")), tools),
        takes_many_calls=given.parallel_tool_calls is not False,
        temperature=given.temperature,
        top_p=given.top_p,
        max_tokens=given.max_output_tokens,
        wants_logprobs=bool(given.top_logprobs) or _wants_logprobs(content.get("include")),
        top_logprobs=given.top_logprobs or 0,
        is_streamed=bool(given.stream),
    )


def _wants_logprobs(include: object) -> bool:
    return isinstance(include, list) and "message.output_text.logprobs" in include


def _read_choice(given: object) -> str:
    match given:
        case None:
            return "auto"
        case str():
            return given
        case {"type": "function", "name": str(name)}:
            return name
    raise wrong("tool_choice", given, "'auto', 'none', 'required', or {'type': 'function', 'name': …}")


def _read_input(given: object) -> list[dict[str, Any]]:
    """The items as messages; what one reply said and called stands in one."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong("input", given, "a text or a list of items")
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(given):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        match kind:
            case "message":
                messages.append({"role": item.get("role"), "content": _read_content(item.get("content"))})
            case "function_call":
                call = {"id": item.get("call_id"), "function": item}
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                output = _read_content(item.get("output"))
                messages.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
            case "reasoning":
                pass
            case _:
                raise wrong(f"input.{place}", kind, "a message, a function_call or a function_call_output")
    return messages


def _read_content(content: object) -> object:
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part["text"]}
        if isinstance(part, Mapping) and part.get("type") in ("input_text", "output_text", "text") and "text" in part
        else part
        for part in content
    ]


@dataclass(slots=True, kw_only=True)
class ResponsesWriter(ReplyWriter):
    """Formats the reply to one request."""

    num_events: int = 0
    text: str | None = None
    """Text of the message in a stream; None before its first event."""

    def whole(self, responses: Sequence[Response]) -> dict[str, Any]:
        (response,) = responses
        return self._about(self._output(response), response)

    # --- as server-sent events -----------------------------------------------------------------------------------

    def begin(self) -> bytes:
        empty = self._about([], None)
        return self._event("response.created", response=empty) + self._event("response.in_progress", response=empty)

    def delta(self, number: int, text: str) -> bytes:
        events = b""
        if self.text is None:
            self.text = ""
            item = {**self._message(""), "status": "in_progress", "content": []}
            part = {"type": "output_text", "text": "", "annotations": []}
            events = self._event("response.output_item.added", output_index=0, item=item)
            events += self._event("response.content_part.added", **self._place(), part=part)
        self.text += text
        return events + self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def end(self, responses: Sequence[Response]) -> bytes:
        (response,) = responses
        events = []
        for index, item in enumerate(self._output(response)):
            if item["type"] == "message":
                if self.text is None:
                    events.append(self.delta(0, ""))
                (part,) = item["content"]
                done = {"text": part["text"], "logprobs": part["logprobs"]}
                events.append(self._event("response.output_text.done", **self._place(), **done))
                events.append(self._event("response.content_part.done", **self._place(), part=part))
            else:
                begun = {**item, "arguments": "", "status": "in_progress"}
                events.append(self._event("response.output_item.added", output_index=index, item=begun))
                where = {"item_id": item["id"], "output_index": index}
                arguments = item["arguments"]
                events.append(self._event("response.function_call_arguments.delta", **where, delta=arguments))
                done = {"arguments": arguments, "name": item["name"]}
                events.append(self._event("response.function_call_arguments.done", **where, **done))
            events.append(self._event("response.output_item.done", output_index=index, item=item))
        kind = "response.incomplete" if is_cut(response) else "response.completed"
        events.append(self._event(kind, response=self.whole(responses)))
        return b"".join(events)

    def fail(self, error: ServeError) -> bytes:
        return self._event("error", code=error.code or error.kind, message=str(error), param=error.param)

    def _event(self, kind: str, **content: Any) -> bytes:
        self.num_events += 1
        return event({"type": kind, "sequence_number": self.num_events - 1, **content}, kind)

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}

    # --- the parts -----------------------------------------------------------------------------------------------

    def _output(self, response: Response) -> list[dict[str, Any]]:
        said, calls = self.call.continuation(response.message.text), response.message.tool_calls
        # A stream that has begun a message goes on with it.
        logprobs = token_logprobs(response, self.decode) if self.call.wants_logprobs else []
        messages = [self._message(said, logprobs)] if said or not calls or self.text is not None else []
        return messages + [
            {
                "type": "function_call",
                "id": f"fc_{self.id}_{place}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
            for place, call in enumerate(calls)
        ]

    def _message(self, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}]
        return {
            "type": "message", "id": f"msg_{self.id}", "role": "assistant", "status": "completed", "content": content
        }  # fmt: skip

    def _about(self, output: list[dict[str, Any]], response: Response | None) -> dict[str, Any]:
        ends_early = response is not None and is_cut(response)
        return {
            "id": f"resp_{self.id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress" if response is None else "incomplete" if ends_early else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if ends_early else None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": self.call.takes_many_calls,
            "temperature": self.call.temperature,
            "tool_choice": self.call.tool_choice if self.call.tool_choice in _CHOICES else "auto",
            "tools": [_tool(tool) for tool in self.call.tools],
            "top_p": self.call.top_p,
            "usage": None if response is None else _usage(response),
        }


_CHOICES = ("auto", "none", "required")


def _tool(tool: ToolSchema) -> dict[str, Any]:
    parameters = parse_json(tool.parameters)
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": parameters,
            "strict": False}  # fmt: skip


def _usage(response: Response) -> dict[str, Any]:
    prompt, sampled = response.prompt_length, len(response.tokens)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }

"""The words of OpenAI's chat completions API: a body becomes a call, responses become a body or a stream.

What would change the result and is not supported is refused by name, never left out silently. It refuses to know HTTP
and episodes.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, PositiveInt

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.serve.chat_requests import (
    Body,
    ModelCall,
    check_choice,
    read_messages,
    read_object,
    read_stop,
    read_tools,
    read_values,
    refuse,
    refuse_unknown,
    token_logprobs,
)
from turnwise.serve.episode import event
from turnwise.types import MAX_ALTERNATIVES, IntArray

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
"""Parameters that only pass with values that ask for nothing."""
_INSTEAD = {
    "functions": "Give them as tools.",
    "response_format": "The engine samples freely and cannot hold a reply to a format. Ask for it in the messages, or "
    "offer it as a tool with tool_choice.",
}
_WITHOUT_MEANING = frozenset(
    (
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    )
)
"""Bookkeeping, and hints that also the original may leave aside: taken and not used."""
_READ_BY_HAND = frozenset(("messages", "tools", "tool_choice", "stop", "stream_options"))
_MAX_CHOICES = 128


class _ChatBody(Body):
    model: str = ""
    n: int | None = Field(default=None, ge=1, le=_MAX_CHOICES)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    stream: bool | None = None
    parallel_tool_calls: bool | None = None


def read_chat(body: bytes) -> ModelCall:
    content = read_object(body)
    for name, value in content.items():
        _check_parameter(name, value)
    given = read_values(_ChatBody, content)
    if given.top_logprobs and not given.logprobs:
        raise ServeError(
            f"top_logprobs: {given.top_logprobs} given without logprobs; expected 'logprobs': true.",
            param="top_logprobs",
        )
    tools = read_tools(content.get("tools"))
    options = content.get("stream_options")
    return ModelCall(
        messages=read_messages(content.get("messages")),
        agent=given.model,
        tools=tools,
        tool_choice=check_choice(_read_choice(content.get("tool_choice")), tools),
        takes_many_calls=given.parallel_tool_calls is not False,
        stop=read_stop(content.get("stop")),
        n=given.n or 1,
        temperature=given.temperature,
        top_p=given.top_p,
        seed=given.seed,
        max_tokens=given.max_completion_tokens or given.max_tokens,
        wants_logprobs=bool(given.logprobs),
        top_logprobs=given.top_logprobs or 0,
        is_streamed=bool(given.stream),
        wants_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
    )


def _read_choice(given: object) -> str:
    match given:
        case None:
            return "auto"
        case str():
            return given
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise ServeError(
        f"tool_choice: {reprlib.repr(given)} given; expected 'auto', 'none', 'required', or {{'type': 'function', "
        "'function': {'name': …}}.",
        param="tool_choice",
    )


def _check_parameter(name: str, value: object) -> None:
    if value is None or name in _ChatBody.model_fields or name in _WITHOUT_MEANING or name in _READ_BY_HAND:
        return
    if name not in _NEUTRAL:
        raise refuse_unknown(name)
    # `True == 1` in Python: a truth value is not a number here.
    if isinstance(value, bool) or value not in _NEUTRAL[name]:
        raise refuse(name, _INSTEAD.get(name, "Leave it out."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWriter:
    """The answer to a call, in the API's words."""

    id: str
    model: str
    call: ModelCall
    decode: Callable[[IntArray], str]

    def whole(self, responses: Sequence[Response]) -> dict[str, Any]:
        choices = [
            {
                "index": number,
                "message": _message(response, self.call),
                "logprobs": self._logprobs(response),
                "finish_reason": _finish_reason(response),
            }
            for number, response in enumerate(responses)
        ]
        return {**self._head("chat.completion", responses), "choices": choices, "usage": _usage(responses)}

    # --- as server-sent events -----------------------------------------------------------------------------------

    def begin(self) -> bytes:
        return b"".join(self._chunk(number, {"role": "assistant", "content": ""}) for number in range(self.call.n))

    def delta(self, number: int, text: str) -> bytes:
        return self._chunk(number, {"content": text})

    def end(self, responses: Sequence[Response]) -> bytes:
        """Calls of tools, which are known when the reply is whole, and how each choice ended."""
        events = []
        for number, response in enumerate(responses):
            if calls := _calls(response):
                events.append(self._chunk(number, {"tool_calls": [{"index": i, **c} for i, c in enumerate(calls)]}))
            choice = {"finish_reason": _finish_reason(response), "logprobs": self._logprobs(response)}
            events.append(self._chunk(number, {}, **choice))
        if self.call.wants_usage:
            head = self._head("chat.completion.chunk", responses)
            events.append(event({**head, "choices": [], "usage": _usage(responses)}))
        return b"".join(events) + b"data: [DONE]\n\n"

    def fail(self, error: ServeError) -> bytes:
        told = {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}
        return event({"error": told})

    def _head(self, kind: str, responses: Sequence[Response] = ()) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}
        if responses:
            head["system_fingerprint"] = f"policy-{responses[0].completion.policy_version}"
        return head

    def _chunk(self, number: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _logprobs(self, response: Response) -> dict[str, Any] | None:
        if not self.call.wants_logprobs:
            return None
        return {"content": token_logprobs(response, self.decode), "refusal": None}


def _message(response: Response, call: ModelCall) -> dict[str, Any]:
    said, calls = call.continuation(response.message.text), _calls(response)
    message: dict[str, Any] = {"role": "assistant", "content": said or None if calls else said, "refusal": None}
    return {**message, "tool_calls": calls} if calls else message


def _calls(response: Response) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in response.message.tool_calls
    ]


def _finish_reason(response: Response) -> str:
    return "tool_calls" if response.message.tool_calls else response.completion.finish_reason.value


def _usage(responses: Sequence[Response]) -> dict[str, int]:
    prompt = responses[0].prompt_length
    sampled = sum(len(response.tokens) for response in responses)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

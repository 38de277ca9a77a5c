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

import numpy as np
from pydantic import Field, PositiveInt

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.serve.calls import (
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
)
from turnwise.serve.streaming import event
from turnwise.types import IntArray

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
"""Parameters that only pass with values that ask for nothing."""
_INSTEAD = {
    "functions": "Give them as tools.",
    "response_format": "The engine samples freely and cannot hold a reply to a format. Ask for it in the messages, or "
    "offer it as a tool with tool_choice.",
    "top_logprobs": "The engine tells the log-prob of the token that was sampled, and of no other.",
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
    stream: bool | None = None
    parallel_tool_calls: bool | None = None


def read_chat(body: bytes) -> ModelCall:
    content = read_object(body)
    for name, value in content.items():
        _check_parameter(name, value)
    given = read_values(_ChatBody, content)
    tools = read_tools(content.get("tools"))
    options = content.get("stream_options")
    return ModelCall(
        messages=read_messages(content.get("messages")),
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
                "message": _message(response),
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
        return event({"error": {"message": str(error), "type": "server_error", "param": None, "code": error.code}})

    def _head(self, kind: str, responses: Sequence[Response] = ()) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}
        if responses:
            head["system_fingerprint"] = f"policy-{responses[0].completion.policy_version}"
        return head

    def _chunk(self, number: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _logprobs(self, response: Response) -> dict[str, Any] | None:
        """One entry per sampled token, the end of turn included; its text is empty."""
        if not self.call.wants_logprobs:
            return None
        content = [
            {
                "token": self.decode(np.array([token], dtype=np.int32)),
                "logprob": float(logprob),
                "bytes": None,
                "top_logprobs": [],
            }
            for token, logprob in zip(response.tokens, response.logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}


def _message(response: Response) -> dict[str, Any]:
    said, calls = response.message.text, _calls(response)
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

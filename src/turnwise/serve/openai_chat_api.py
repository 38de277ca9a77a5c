"""OpenAI chat completions API: parses requests, formats replies and streams.

Parameters that would change the reply and are not supported raise an error; none is ignored silently.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, PositiveInt

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.serve.chat_requests import (
    FORMAT_ALTERNATIVE,
    Body,
    ChatRequest,
    Parameters,
    ReplyWriter,
    check_choice,
    read_messages,
    read_object,
    read_stop,
    read_tools,
    token_logprobs,
    wrong,
)
from turnwise.serve.episode import event
from turnwise.types import MAX_ALTERNATIVES

_MAX_CHOICES = 128


class _ChatBody(Body):
    n: int | None = Field(default=None, ge=1, le=_MAX_CHOICES)
    seed: int | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_ALTERNATIVES)
    parallel_tool_calls: bool | None = None


_PARAMETERS = Parameters(
    body=_ChatBody,
    structured=("messages", "tools", "tool_choice", "stop", "stream_options"),
    ignored=(
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    ),
    neutral={
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
    },
    alternatives={"functions": "Give them as tools.", "response_format": FORMAT_ALTERNATIVE},
)


def read_chat(body: bytes) -> ChatRequest:
    content = read_object(body)
    given = _PARAMETERS.parse(content)
    if given.top_logprobs and not given.logprobs:
        raise ServeError(
            f"top_logprobs: {given.top_logprobs} given without logprobs; expected 'logprobs': true.",
            param="top_logprobs",
        )
    tools = read_tools(content.get("tools"))
    options = content.get("stream_options")
    return ChatRequest(
        messages=read_messages(content.get("messages")),
        agent=given.model or "",
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
    raise wrong("tool_choice", given, "'auto', 'none', 'required', or {'type': 'function', 'function': {'name': …}}")


class ChatWriter(ReplyWriter):
    """Formats the reply to a request."""

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


def _message(response: Response, call: ChatRequest) -> dict[str, Any]:
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

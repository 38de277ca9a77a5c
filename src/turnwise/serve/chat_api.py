"""The words of OpenAI's chat completions API: a body becomes a call, responses become a body.

What would change the result and is not supported is refused by name, never left out silently. It refuses to know HTTP
and episodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.types import IntArray, Message

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "stop": ([], ""),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "top_p": (1,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
}
"""Parameters that only pass with values that ask for nothing."""
_INSTEAD = {
    "stop": "A reply ends with the model's own end of turn.",
    "tools": "Describe tools in the messages and read their calls from the reply's text.",
    "functions": "Describe functions in the messages and read their calls from the reply's text.",
}
_WITHOUT_MEANING = frozenset(
    (
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "user",
    )
)
"""Bookkeeping, and hints that also the original may leave aside: taken and not used."""
_MAX_CHOICES = 128


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


def _check_text(text: str) -> str:
    """JSON can spell half a character, which no tokenizer takes."""
    text.encode()
    return text


_Text = Annotated[str, AfterValidator(_check_text)]


class _TextPart(_Body):
    type: Literal["text"]
    text: _Text


class _ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | list[_TextPart]
    tool_calls: list[Any] | None = Field(default=None, max_length=0)

    def to_message(self) -> Message:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return Message("system" if self.role == "developer" else self.role, text)


class _StreamOptions(_Body):
    include_usage: bool = False


class _ChatBody(_Body):
    model: str = ""
    messages: list[_ChatMessage] = Field(min_length=1)
    n: int | None = Field(default=None, ge=1, le=_MAX_CHOICES)
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What a client asks for."""

    messages: tuple[Message, ...]
    n: int = 1
    temperature: float | None = None
    max_tokens: int | None = None
    wants_logprobs: bool = False
    is_streamed: bool = False
    wants_usage: bool = False
    """At the end of a stream; a whole reply always says it."""


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty body is an empty one."""
    try:
        content = json.loads(body or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ServeError(f"the body is not JSON: {error}. Send a JSON object.") from error
    if not isinstance(content, dict):
        raise ServeError(f"the body is a JSON {type(content).__name__}; expected an object.")
    return content


def read_chat(body: bytes) -> ChatCall:
    content = read_object(body)
    for name, value in content.items():
        _check_parameter(name, value)
    try:
        given = _ChatBody.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(word) for word in first["loc"] if isinstance(word, int) or word[:1].islower())
        raise ServeError(f"{where}: {first['msg']}.", param=where) from error
    options = given.stream_options or _StreamOptions()
    return ChatCall(
        messages=tuple(message.to_message() for message in given.messages),
        n=given.n or 1,
        temperature=given.temperature,
        max_tokens=given.max_completion_tokens or given.max_tokens,
        wants_logprobs=bool(given.logprobs),
        is_streamed=bool(given.stream),
        wants_usage=options.include_usage,
    )


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _check_parameter(name: str, value: object) -> None:
    if value is None or name in _ChatBody.model_fields or name in _WITHOUT_MEANING:
        return
    if name not in _NEUTRAL:
        raise ServeError(f"'{name}' is not known here. Leave it out.", param=name, code="unknown_parameter")
    # `True == 1` in Python: a truth value is not a number here.
    if isinstance(value, bool) or value not in _NEUTRAL[name]:
        instead = _INSTEAD.get(name, "Leave it out.")
        raise ServeError(f"'{name}' is not supported. {instead}", param=name, code="unsupported_parameter")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """The answer to a call, in the API's words."""

    id: str
    model: str
    call: ChatCall
    responses: Sequence[Response]
    decode: Callable[[IntArray], str]

    def to_json(self) -> dict[str, Any]:
        """The whole reply."""
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": response.response_text, "refusal": None},
                "logprobs": self._logprobs(response),
                "finish_reason": response.completion.finish_reason.value,
            }
            for number, response in enumerate(self.responses)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    def to_events(self) -> bytes:
        """The same as server-sent events: each choice in one piece, since tokens are handed out when all are there."""
        chunks = []
        for number, response in enumerate(self.responses):
            delta = {"role": "assistant", "content": response.response_text}
            chunks.append(self._chunk(number, delta, None, self._logprobs(response)))
            chunks.append(self._chunk(number, {}, response.completion.finish_reason.value, None))
        if self.call.wants_usage:
            chunks.append({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()})
        return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"policy-{self.responses[0].completion.policy_version}",
        }

    def _chunk(
        self, number: int, delta: Mapping[str, str], finish_reason: str | None, logprobs: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _usage(self) -> dict[str, int]:
        prompt = self.responses[0].prompt_length
        sampled = sum(len(response.tokens) for response in self.responses)
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

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

"""Chat requests of all three APIs: `ChatRequest`, the parameters that the APIs share, and the base of their replies.

A request becomes a `ChatRequest` or raises a `ServeError` that names the parameter.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.context.messages import read_message
from turnwise.context.recorder import Response
from turnwise.errors import ServeError, TurnwiseError
from turnwise.infra.parsing import parse_json
from turnwise.infra.untrusted import whole_json
from turnwise.types import IMPOSSIBLE_LOGPROB, FinishReason, IntArray, Message, ToolSchema

_MAX_TOOLS = 128
_MAX_STOPS = 16
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Where half a character may stand in JSON, as it is or escaped; whole ones may be spelled so as well."""
_T = TypeVar("_T", bound="Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call of the model."""

    messages: tuple[Message, ...]
    agent: str = ""
    """What the client calls the model. There is one: the name says which agent of a program asks."""
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the tool to call."""
    takes_many_calls: bool = True
    """Whether one reply may call several tools."""
    stop: tuple[str, ...] = ()
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    wants_logprobs: bool = False
    top_logprobs: int = 0
    """How many of the likeliest tokens to tell at every place."""
    is_streamed: bool = False
    wants_usage: bool = False
    """At the end of a stream; a whole reply always says it."""

    @property
    def takes_calls(self) -> bool:
        """Whether calls in the reply are read as such; otherwise they are text."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def prefill(self) -> str:
        """How the client itself begins the reply: a last message of the assistant, which the model continues."""
        return self.messages[-1].text if self.messages[-1].role == "assistant" else ""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """What the reply answers."""
        return self.messages[:-1] if self.messages[-1].role == "assistant" else self.messages

    def continuation(self, text: str) -> str:
        """The part of a reply's text behind the prefill; beside calls, whitespace around the text is missing."""
        return text[_count_equal(text, self.prefill) or _count_equal(text, self.prefill.lstrip()) :]


def _count_equal(text: str, other: str) -> int:
    """The characters with which both begin."""
    differing = (place for place, (a, b) in enumerate(zip(text, other, strict=False)) if a != b)
    return next(differing, min(len(text), len(other)))


class Body(BaseModel):
    """Scalar parameters of a request. Structured ones have parsers of their own with better error messages."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())

    model: str | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(Generic[_T]):
    """Parameters of one API and how each is treated; all others are unknown."""

    body: type[_T]
    """Scalar parameters."""
    structured: tuple[str, ...]
    """Parsed by functions of the API."""
    ignored: tuple[str, ...]
    """Metadata and hints without effect on the reply."""
    neutral: Mapping[str, tuple[object, ...]]
    """Accepted only with values that request nothing."""
    alternatives: Mapping[str, str]
    """What to use instead of a parameter that is not supported."""

    def parse(self, content: Mapping[str, Any]) -> _T:
        known = {*self.body.model_fields, *self.structured, *self.ignored}
        for name, value in content.items():
            if value is None or name in known:
                continue
            if name not in self.neutral:
                raise unknown_parameter(name)
            # `True == 1` in Python: a boolean is not a number here.
            if not any(
                value == each and isinstance(value, bool) <= isinstance(each, bool) for each in self.neutral[name]
            ):
                raise unsupported(name, self.alternatives.get(name, "Leave it out."))
        return read_values(self.body, content)


FORMAT_ALTERNATIVE = (
    "The engine samples freely and cannot hold a reply to a format. Ask for it in the messages, or offer it as a tool "
    "with tool_choice."
)


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty body is an empty one. Half a character, which no tokenizer takes, is replaced."""
    try:
        text = (body or b"{}").decode(json.detect_encoding(body), "surrogatepass")
        content = parse_json(text, parse_constant=_refuse_constant)
        if _HALF.search(text):
            content = whole_json(content)
    except ValueError as error:
        raise ServeError(f"the body is not JSON: {error}. Send a JSON object.") from error
    if not isinstance(content, dict):
        raise ServeError(f"the body is a JSON {type(content).__name__}; expected an object.")
    return content


def read_values(body: type[_T], content: Mapping[str, Any]) -> _T:
    try:
        return body.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        given = reprlib.repr(first["input"])
        raise ServeError(f"{where}: {given} given. {first['msg']}.", param=where) from error


def read_messages(given: object, where: str = "messages") -> tuple[Message, ...]:
    """Messages in the words of chat completions."""
    if not isinstance(given, list) or not given:
        raise wrong(where, given, "a list of messages, at least one")
    messages = tuple(_read_message(message, f"{where}.{place}") for place, message in enumerate(given))
    last = messages[-1]
    if last.role == "assistant" and (last.tool_calls or len(messages) == 1):
        raise ServeError(
            f"{where}: the last message is the assistant's and {'calls tools' if last.tool_calls else 'the only one'}; "
            "expected the results of its calls or a message of the user, or the text that the reply begins with behind "
            "such a message.",
            param=where,
        )
    return messages


def _read_message(given: object, where: str) -> Message:
    if not isinstance(given, Mapping):
        raise wrong(where, given, "{'role': …, 'content': …}")
    role = given.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise wrong(f"{where}.role", role, "system, developer, user, assistant or tool")
    mapping = {**given, "role": "system" if role == "developer" else role}
    try:
        message = read_message(mapping)
    except TurnwiseError as error:
        raise ServeError(f"{where}: {error}", param=where) from error
    if not isinstance(message.content, str):
        raise ServeError(f"{where}: holds an image; expected text alone.", param=where)
    return message


def read_tools(given: object, where: str = "tools") -> tuple[ToolSchema, ...]:
    """Functions in the words of chat completions."""
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > _MAX_TOOLS:
        raise wrong(where, given, f"a list of at most {_MAX_TOOLS} tools")
    return tuple(_read_tool(tool, f"{where}.{place}") for place, tool in enumerate(given))


def _read_tool(given: object, where: str) -> ToolSchema:
    if not isinstance(given, Mapping) or given.get("type", "function") != "function":
        kind = given.get("type") if isinstance(given, Mapping) else given
        raise wrong(where, kind, "{'type': 'function', …}: tools that run elsewhere are not offered here")
    try:
        return ToolSchema.from_mapping(given)
    except ValueError as error:
        raise ServeError(f"{where}: {error}.", param=where) from error


def read_stop(given: object, where: str = "stop") -> tuple[str, ...]:
    """One text, or a list of them; empty ones ask for nothing."""
    words = [given] if isinstance(given, str) else given if given is not None else []
    if not isinstance(words, Sequence) or len(words) > _MAX_STOPS or not all(isinstance(word, str) for word in words):
        raise wrong(where, given, f"a text or a list of at most {_MAX_STOPS}")
    return tuple(word for word in words if word)


def check_choice(choice: str, tools: Sequence[ToolSchema], where: str = "tool_choice") -> str:
    """A choice that these tools allow."""
    if not tools and choice in ("auto", "none"):
        return choice
    known = [tool.name for tool in tools]
    if choice not in ("auto", "none", "required", *known) or not tools:
        raise ServeError(f"{where}: '{choice}' given; the tools are {known}.", param=where)
    return choice


def wrong(where: str, given: object, expected: str) -> ServeError:
    return ServeError(f"{where}: {reprlib.repr(given)} given; expected {expected}.", param=where)


def unsupported(name: str, instead: str) -> ServeError:
    return ServeError(f"'{name}' is not supported. {instead}", param=name, code="unsupported_parameter")


def unknown_parameter(name: str) -> ServeError:
    return ServeError(f"'{name}' is not known here. Leave it out.", param=name, code="unknown_parameter")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


@dataclass(slots=True, kw_only=True)
class ReplyWriter:
    """Base of the writers: formats the reply to one request as one object or as server-sent events."""

    id: str
    model: str
    call: ChatRequest
    decode: Callable[[IntArray], str]


def is_cut(response: Response) -> bool:
    """Return whether a reply ended at its token limit."""
    return response.completion.finish_reason is FinishReason.LENGTH


def token_logprobs(response: Response, decode: Callable[[IntArray], str]) -> list[dict[str, Any]]:
    """Format the log-probs of the sampled tokens, with the most likely alternatives if requested."""
    likeliest = response.completion.alternatives

    def write(token: int, logprob: float) -> dict[str, Any]:
        text = decode(np.array([token], dtype=np.int32))
        return {"token": text, "logprob": logprob if math.isfinite(logprob) else IMPOSSIBLE_LOGPROB, "bytes": None}

    entries = []
    for place, (token, logprob) in enumerate(zip(response.tokens.tolist(), response.logprobs.tolist(), strict=True)):
        others = (
            []
            if likeliest is None
            else zip(likeliest.token_ids[place].tolist(), likeliest.logprobs[place].tolist(), strict=True)
        )
        entries.append({**write(token, logprob), "top_logprobs": [write(*other) for other in others]})
    return entries

"""What a client asks for, whichever API it speaks: one noun for all of them, and how the parts they share are read.

In: the JSON of a request. Out: a ModelCall, or a ServeError that names what was wrong. It refuses to know HTTP,
episodes and the words of one API.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.context.messages import read_message
from turnwise.context.recorder import Response
from turnwise.errors import ServeError, TurnwiseError
from turnwise.infra.parsing import parse_json
from turnwise.infra.untrusted import whole_json
from turnwise.types import IMPOSSIBLE_LOGPROB, IntArray, Message, ToolSchema

_MAX_TOOLS = 128
_MAX_STOPS = 16
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Where half a character may stand in JSON, as it is or escaped; whole ones may be spelled so as well."""
_T = TypeVar("_T", bound="Body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
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
    """The plain values of a request; what has a structure is read by hand, so that mistakes are told in our words."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


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
        raise ServeError(
            f"{where}: {reprlib.repr(given)} given; expected a list of messages, at least one.", param=where
        )
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
        raise ServeError(f"{where}: {reprlib.repr(given)} given; expected {{'role': …, 'content': …}}.", param=where)
    role = given.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise ServeError(
            f"{where}.role: {reprlib.repr(role)} given; expected system, developer, user, assistant or tool.",
            param=f"{where}.role",
        )
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
        raise ServeError(
            f"{where}: {reprlib.repr(given)} given; expected a list of at most {_MAX_TOOLS} tools.", param=where
        )
    return tuple(_read_tool(tool, f"{where}.{place}") for place, tool in enumerate(given))


def _read_tool(given: object, where: str) -> ToolSchema:
    if not isinstance(given, Mapping) or given.get("type", "function") != "function":
        kind = given.get("type") if isinstance(given, Mapping) else given
        raise ServeError(
            f"{where}: {reprlib.repr(kind)} given; expected {{'type': 'function', …}}: tools that run elsewhere are "
            "not offered here.",
            param=where,
        )
    try:
        return ToolSchema.from_mapping(given)
    except ValueError as error:
        raise ServeError(f"{where}: {error}.", param=where) from error


def read_stop(given: object, where: str = "stop") -> tuple[str, ...]:
    """One text, or a list of them; empty ones ask for nothing."""
    words = [given] if isinstance(given, str) else given if given is not None else []
    if not isinstance(words, Sequence) or len(words) > _MAX_STOPS or not all(isinstance(word, str) for word in words):
        raise ServeError(
            f"{where}: {reprlib.repr(given)} given; expected a text or a list of at most {_MAX_STOPS}.", param=where
        )
    return tuple(word for word in words if word)


def check_choice(choice: str, tools: Sequence[ToolSchema], where: str = "tool_choice") -> str:
    """A choice that these tools allow."""
    if not tools and choice in ("auto", "none"):
        return choice
    known = [tool.name for tool in tools]
    if choice not in ("auto", "none", "required", *known) or not tools:
        raise ServeError(f"{where}: '{choice}' given; the tools are {known}.", param=where)
    return choice


def refuse(name: str, instead: str) -> ServeError:
    return ServeError(f"'{name}' is not supported. {instead}", param=name, code="unsupported_parameter")


def refuse_unknown(name: str) -> ServeError:
    return ServeError(f"'{name}' is not known here. Leave it out.", param=name, code="unknown_parameter")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def token_logprobs(response: Response, decode: Callable[[IntArray], str]) -> list[dict[str, Any]]:
    """With the likeliest tokens at each place where they were asked for."""
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

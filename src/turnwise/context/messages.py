"""Dictionaries of chat APIs become Messages, and Messages become the dictionaries that chat templates read.

In come what programs and HTTP clients send, `{"role": …, "content": …, "tool_calls": […]}`; out come `types.Message`
and `types.ToolSchema`, or a `MessageError` that says what was given and what was expected. It refuses to know tokens,
templates and how a model writes a call.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.errors import MessageError
from turnwise.infra.parsing import check_json_depth, parse_json
from turnwise.infra.untrusted import whole_json
from turnwise.types import ImagePart, Message, Part, TextPart, ToolCall, ToolSchema

_NUM_SHORT_ID_CHARACTERS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What templates disagree about; `tool_turns.py` finds out which one a template speaks."""

    arguments_are_text: bool = False
    """Whether the arguments of a call are given as JSON text and not as a mapping."""
    silence_is_none: bool = False
    """Whether a message that calls and says nothing has the content None and not an empty text."""
    ids_are_short: bool = False
    """Whether the id of a call must have exactly nine letters and digits."""


def read_message(given: Message | Mapping[str, object]) -> Message:
    """The message that a dictionary of a chat API says; a Message is one already.

    Contents that are parts of text alone become one text, and arguments are written in one way, so that equal messages
    are equal whichever client sent them.
    """
    if isinstance(given, Message):
        return given
    role = given.get("role") if isinstance(given, Mapping) else None
    if not isinstance(role, str) or not role:
        raise MessageError(
            f"message {reprlib.repr(given)}; expected a mapping such as {{'role': 'user', 'content': '…'}}."
        )
    calls = given.get("tool_calls")
    if calls is not None and (isinstance(calls, str | Mapping) or not isinstance(calls, Sequence)):
        raise MessageError(f"{role} message: 'tool_calls' is {reprlib.repr(calls)}; expected a list of calls.")
    if calls and role != "assistant":
        raise MessageError(f"{role} message with 'tool_calls'; expected them in messages of the assistant alone.")
    return Message(
        role,
        _read_content(given.get("content"), role),
        tuple(_read_call(call) for call in calls or ()),
        _read_word(given, "tool_call_id"),
        _read_word(given, "name"),
    )


def read_tool(given: ToolSchema | Mapping[str, object]) -> ToolSchema:
    """The tool that a dictionary of a chat API describes; a ToolSchema is one already."""
    if isinstance(given, ToolSchema):
        return given
    if not isinstance(given, Mapping):
        raise MessageError(f"tool {reprlib.repr(given)}; expected a ToolSchema, or a mapping with a 'function' in it.")
    try:
        return ToolSchema.from_mapping(given)
    except (ValueError, TypeError) as error:
        raise MessageError(f"{error}.") from error


def write_message(message: Message, dialect: Dialect | None = None) -> dict[str, object]:
    """What a chat template reads; without a dialect, arguments are mappings and ids stay as they are."""
    dialect = dialect or Dialect()
    content: object = message.content if isinstance(message.content, str) else _write_parts(message.content)
    written: dict[str, object] = {"role": message.role, "content": content}
    if message.tool_calls:
        written["content"] = content or (None if dialect.silence_is_none else "")
        written["tool_calls"] = [_write_call(call, dialect) for call in message.tool_calls]
    # A result always names its call where ids are short: a template that counts their letters asks for one.
    if message.tool_call_id or (dialect.ids_are_short and message.role == "tool"):
        written["tool_call_id"] = _write_id(message.tool_call_id, dialect)
    if message.name:
        written["name"] = message.name
    return written


def write_json(value: object) -> str:
    """The one way to write arguments; raises ValueError for what JSON cannot say, half a surrogate pair included."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    check_json_depth(text)
    return text


def short_id(text: str) -> str:
    """Nine letters and digits that stand for a text, and always the same ones; nine of them stand for themselves."""
    if len(text) == _NUM_SHORT_ID_CHARACTERS and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_NUM_SHORT_ID_CHARACTERS]


# --- reading --------------------------------------------------------------------------------------------------------


def _read_content(content: object, role: str) -> str | tuple[Part, ...]:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise MessageError(f"{role} message: 'content' is {reprlib.repr(content)}; expected a text or a list of parts.")
    parts = tuple(_read_part(part, role) for part in content)
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return parts


def _read_part(part: object, role: str) -> Part:
    if isinstance(part, TextPart | ImagePart):
        return part
    if isinstance(part, Mapping):
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return TextPart(part["text"])
        if part.get("type") == "image_url":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, Mapping) else image
            if isinstance(url, str):
                return ImagePart(url)
    raise MessageError(
        f"{role} message: content part {reprlib.repr(part)}; expected {{'type': 'text', 'text': '…'}} or "
        "{'type': 'image_url', 'image_url': {'url': '…'}}."
    )


def _read_call(call: object) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise MessageError(
            f"tool call {reprlib.repr(call)}; expected {{'id': '…', 'type': 'function', 'function': {{'name': '…', "
            "'arguments': '{}'}}."
        )
    arguments = function.get("arguments")
    try:
        value = parse_json(arguments or "{}") if isinstance(arguments, str | None) else arguments
        if not isinstance(value, Mapping):
            raise ValueError(f"found {type(value).__name__}")
        return ToolCall(name, write_json(whole_json(value)), _read_word(call, "id"))
    except (ValueError, TypeError, RecursionError) as error:
        raise MessageError(
            f"tool call of '{name}': arguments {reprlib.repr(arguments)} are no JSON object: {error}."
        ) from error


def _read_word(given: Mapping[str, object], key: str) -> str:
    word = given.get(key)
    if word is None:
        return ""
    if not isinstance(word, str):
        raise MessageError(f"'{key}' is {reprlib.repr(word)}; expected a text.")
    return word


# --- writing --------------------------------------------------------------------------------------------------------


def _write_parts(parts: tuple[Part, ...]) -> object:
    """One text where there is nothing else: most templates know no parts."""
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": part.url}}
        for part in parts
    ]


def _write_call(call: ToolCall, dialect: Dialect) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments if dialect.arguments_are_text else _parse(call)}
    named = {"id": _write_id(call.id, dialect)} if call.id or dialect.ids_are_short else {}
    return {**named, "type": "function", "function": function}


def _parse(call: ToolCall) -> object:
    try:
        return parse_json(call.arguments)
    except (ValueError, RecursionError) as error:
        raise MessageError(
            f"tool call of '{call.name}': arguments {reprlib.repr(call.arguments)} are no JSON: {error}."
        ) from error


def _write_id(identity: str, dialect: Dialect) -> str:
    return short_id(identity) if dialect.ids_are_short else identity

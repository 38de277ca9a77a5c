"""What is said in a conversation: messages, their parts, tool calls, and the tools that may be called.

Import these from `types.py`, where every other noun is. All are frozen and can be hashed: conversations are keys of
what is remembered about them. How they become tokens is the context room's business.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text inside a message."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image inside a message; a model of text alone refuses it."""

    url: str
    """A `data:` or `https:` address."""


Part: TypeAlias = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a reply asks a tool to do. Example: `ToolCall("look_up", '{"city": "Bern"}', "c52a07f1e")`."""

    name: str
    arguments: str
    """A JSON object as text, as chat APIs write it."""
    id: str = ""
    """By which the result names the call it answers."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that a model may call. Example: `ToolSchema("look_up", "Finds the weather.", '{"type": "object"}')`."""

    name: str
    description: str
    parameters: str
    """The JSON schema of the arguments, as text: a schema is a key of caches."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """From what chat APIs know: `{"type": "function", "function": {"name": …, "parameters": {…}}}`, or its inside.

        The order of the parameters stays: it is what the model reads.
        """
        inside = mapping.get("function", mapping)
        name = inside.get("name") if isinstance(inside, Mapping) else None
        if not isinstance(inside, Mapping) or not isinstance(name, str) or not name:
            given = reprlib.repr(dict(mapping))
            raise ValueError(f"tool {given}; expected {{'type': 'function', 'function': {{'name': '…', …}}}}")
        description, parameters = inside.get("description") or "", inside.get("parameters") or {}
        if not isinstance(description, str) or not isinstance(parameters, Mapping):
            raise ValueError(f"tool '{name}': expected a text as 'description' and a JSON schema as 'parameters'")
        return cls(name, description, json.dumps(parameters, ensure_ascii=False, allow_nan=False))

    def to_mapping(self) -> dict[str, object]:
        """What chat APIs and chat templates know."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": json.loads(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One utterance of a conversation, as chat templates know it.

    Example, two calls side by side and their results::

        Message("user", "Is it warmer in Bern or in Oslo?")
        Message("assistant", "I look.", (ToolCall("look_up", '{"city": "Bern"}', "a"), ToolCall(…, "b")))
        Message("tool", "17", tool_call_id="a", name="look_up")
        Message("tool", "9", tool_call_id="b", name="look_up")
        Message("assistant", "In Bern.")
    """

    role: str
    """system, user, assistant or tool."""
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant's message asks for, beside what it says."""
    tool_call_id: str = ""
    """The call that a tool's message answers."""
    name: str = ""
    """Of the tool, on a tool's message."""

    @property
    def text(self) -> str:
        """What it says: the content, or the text parts of it joined."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt as it was put together, before it became ids."""

    messages: tuple[Message, ...]
    prefix: str = ""
    """How the reply is made to begin."""
    tools: tuple[ToolSchema, ...] = ()

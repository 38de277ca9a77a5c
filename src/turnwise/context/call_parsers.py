"""A reply becomes the tool calls that it holds, one parser for each way in which models write them.

In comes the decoded copy of a reply; out come what it says beside its calls, and the calls. Every text gives an answer:
a call that is not well-formed is text, nothing is raised, nothing is run and nothing is guessed. Each parser tries a
bounded number of places and goes over the text once for each, so that no reply takes long. It refuses to know tokens,
templates and which tools there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

from turnwise.context.messages import write_json
from turnwise.infra.parsing import decode_json_at, parse_json
from turnwise.types import ToolCall

_MAX_CALLS = 64
"""In one reply. What comes after them is text; so is a list that holds more."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class HermesCalls:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call; Hermes and Qwen write it."""

    _BEGIN, _END = "<tool_call>", "</tool_call>"

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        calls: list[ToolCall] = []
        said: list[str] = []
        done = 0
        begin = text.find(self._BEGIN)
        for _ in range(_MAX_CALLS):
            if begin < 0:
                break
            # The object is read before its closing tag is looked for: arguments may quote the tag.
            value, end = _read_json(text, begin + len(self._BEGIN))
            call = _as_call(value, ("arguments",))
            end = _skip_space(text, end)
            if call is not None and text.startswith(self._END, end):
                calls.append(call)
                said.append(text[done:begin])
                done = end + len(self._END)
            begin = text.find(self._BEGIN, max(done, begin + 1))
        return _beside([*said, text[done:]], calls)

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"{self._BEGIN}\n{_write_call(call, 'arguments')}\n{self._END}" for call in calls)


class Llama3JsonCalls:
    """`{"name": …, "parameters": {…}}`, several parted by `;`, with or without `<|python_tag|>` before them.

    The calls are the whole of the reply, or the whole of what follows the tag: JSON inside a sentence is text.
    """

    _TAG = "<|python_tag|>"
    _KEYS = frozenset({"name", "parameters", "arguments", "type", "id"})

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        # The whole is read first: the arguments of a call may quote the tag.
        if calls := self._read_all(text, 0):
            return "", tuple(calls)
        tag = text.find(self._TAG)
        calls = self._read_all(text, tag + len(self._TAG)) if tag >= 0 else []
        return _beside([text[:tag]], calls) if calls else (text, ())

    def _read_all(self, text: str, start: int) -> list[ToolCall]:
        """The calls from here to the end; none where something else stands between them."""
        calls: list[ToolCall] = []
        while len(calls) < _MAX_CALLS:
            value, end = _read_json(text, start)
            is_bare = isinstance(value, Mapping) and value.keys() <= self._KEYS
            call = _as_call(value, ("parameters", "arguments")) if is_bare else None
            if call is None:
                break
            calls.append(call)
            end = _skip_space(text, end)
            if end == len(text):
                return calls
            if text[end] != ";":
                break
            start = end + 1
        return []

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(_write_call(call, "parameters") for call in calls)


class MistralCalls:
    """`[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` once for each call."""

    _MARK, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        begin = text.find(self._MARK)
        if begin < 0:
            return text, ()
        start = _skip_space(text, begin + len(self._MARK))
        calls, end = self._read_list(text, start) if text.startswith("[", start) else self._read_named(text, begin)
        return _beside([text[:begin], text[end:]], calls) if calls else (text, ())

    def write(self, calls: Sequence[ToolCall]) -> str:
        written = [_write_call(call, "arguments", **({"id": call.id} if call.id else {})) for call in calls]
        return f"{self._MARK}[{', '.join(written)}]"

    def _read_list(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        values, end = _read_json(text, start)
        if not isinstance(values, list) or len(values) > _MAX_CALLS:
            return [], end
        calls = [_as_call(value, ("arguments",)) for value in values]
        read = [call for call in calls if call is not None]
        return (read, end) if len(read) == len(calls) else ([], end)

    def _read_named(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        end = start
        while len(calls) < _MAX_CALLS and text.startswith(self._MARK, end):
            name_at = end + len(self._MARK)
            args_at = text.find(self._ARGS, name_at)
            if args_at < 0:
                break
            name, _, identity = text[name_at:args_at].partition(self._ID)
            value, after = _read_json(text, args_at + len(self._ARGS))
            call = _as_call({"name": name.strip(), "arguments": value, "id": identity.strip()}, ("arguments",))
            # Without its arguments a call runs on to those of the next one: its name would hold a mark.
            if call is None or not isinstance(value, Mapping) or "[" in call.name + call.id:
                break
            calls.append(call)
            end = _skip_space(text, after)
        return calls, end


# --- JSON inside a text ---------------------------------------------------------------------------------------------


def _read_json(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins here, whitespace aside, and where it ends; None where there is none."""
    start = _skip_space(text, start)
    try:
        return decode_json_at(text, start, _DECODER)
    except ValueError:
        return None, start


def _read_whole_json(text: str) -> object:
    value, end = _read_json(text, 0)
    return value if _skip_space(text, end) == len(text) else None


def _as_call(value: object, keys: Sequence[str]) -> ToolCall | None:
    """A call, if this is an object with a name and, under the first of the keys that it has, arguments."""
    if not isinstance(value, Mapping):
        return None
    name, identity = value.get("name"), value.get("id") or ""
    arguments = next((value[key] for key in keys if value.get(key) is not None), {})
    if isinstance(arguments, str):
        # Chat APIs write arguments as text, and some models have learnt it from them.
        arguments = _read_whole_json(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping) or not isinstance(identity, str):
        return None
    try:
        (name + identity).encode("utf-8")
        return ToolCall(name, write_json(arguments), identity)
    except ValueError:
        return None


def _write_call(call: ToolCall, key: str, **more: str) -> str:
    return write_json({"name": call.name, key: parse_json(call.arguments), **more})


def _beside(said: Sequence[str], calls: list[ToolCall]) -> tuple[str, tuple[ToolCall, ...]]:
    """What a reply says beside its calls; the whitespace that parts it from them is theirs."""
    text = "".join(said)
    return (text.strip() if calls else text), tuple(calls)


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start

"""Tool syntax of a chat template, inferred by rendering tools, calls and results.

`infer_tool_syntax` returns a `ToolSyntax`: the message format that the template expects, the parser of the calls that
it writes, and the escaper for texts of tools; or `ToolsUnsupported` with the reason. No model names are compared: a
parser fits if it reads back what the template wrote.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

from turnwise.config.component import CALL_PARSERS
from turnwise.context.messages import Dialect, write_json
from turnwise.context.template_slots import ASKED, EndOfTurn
from turnwise.context.tokenizer import SpecialTokenEscaper, TokenizerAdapter
from turnwise.errors import ConfigError, ModelError
from turnwise.infra.parsing import decode_json_at, parse_json
from turnwise.protocols import CallParser
from turnwise.types import Message, ToolCall, ToolSchema

_log = logging.getLogger("turnwise.context")

_RESULT, _SAID = "qzresultqz", "qzsaidqz"
_TOOL = ToolSchema(
    "qztoolqz",
    "qzdescribedqz",
    write_json(
        {
            "type": "object",
            "properties": {"qzkeyqz": {"type": "string", "description": "qzaboutqz"}},
            "required": ["qzkeyqz"],
        }
    ),
)
_DIALECTS = tuple(
    Dialect(ids_are_short=short, arguments_are_text=text, silence_is_none=none)
    for short, text, none in itertools.product((False, True), repeat=3)
)
"""Plain mappings first: they are what templates are documented to get."""


@dataclass(frozen=True, slots=True)
class ToolsUnsupported:
    """Why a template is not for tools; the sentence goes on from `the chat template`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax:
    dialect: Dialect
    parser: CallParser
    takes_many_calls: bool
    """Whether one message may hold several calls; if not, they are spelled out in its text."""
    writes_text: bool
    """Whether a message with calls may say something beside them; some templates leave that away."""
    guard: SpecialTokenEscaper
    """Knows also the tokens that the template writes around tools, calls and results."""


def probe_reply(number: int, *, num_calls: int = 1, said: str = "") -> Message:
    """An assistant's message with calls; those of different numbers have nothing in common but their form."""
    return Message("assistant", said, tuple(_probe_call(number, place) for place in range(num_calls)))


def _probe_call(number: int, place: int) -> ToolCall:
    return ToolCall(
        f"qztool{number}qz", write_json({"qzkeyqz": f"qzarg{number}x{place}qz"}), f"qzcall_{number}_{place}"
    )


def find_end_of_reply(text: str, reply: Message, end: EndOfTurn, start: int = 0) -> int:
    """Where the end of turn stands behind a probe reply with calls; -1 if it cannot be found."""
    last_argument = json.loads(reply.tool_calls[-1].arguments)["qzkeyqz"]
    place = text.find(last_argument, start)
    return text.find(end.text, place) if place >= 0 else -1


def find_call_parser(name: str) -> CallParser:
    """The parser behind a registered name or `package.module:Class`."""
    parser = CALL_PARSERS.get_target(name)
    parser = parser() if isinstance(parser, type) else parser
    if not callable(getattr(parser, "read", None)) or not callable(getattr(parser, "write", None)):
        raise ConfigError(
            f"parser of tool calls '{name}' is {parser!r}; expected a class with the methods read and write of "
            "turnwise.protocols.CallParser."
        )
    return cast("CallParser", parser)


def infer_tool_syntax(
    codec: TokenizerAdapter,
    end: EndOfTurn | None,
    frame_ids: Sequence[int],
    stop_ids: frozenset[int],
    call_parser: str | None,
) -> ToolSyntax | ToolsUnsupported:
    """`frame_ids` are those of a conversation without tools; `call_parser` names the parser, None leaves it open."""
    if end is None:
        return ToolsUnsupported("marks the end of a reply with no token of its own")
    try:
        prompt = codec.render([Message("user", ASKED)], [_TOOL])
    except ModelError as error:
        return ToolsUnsupported(f"refuses tools ({_cause(error)})")
    if _TOOL.name not in prompt:
        return ToolsUnsupported("does not write the tools that it is given")
    names = [call_parser] if call_parser else list(CALL_PARSERS)
    parsers = {name: find_call_parser(name) for name in names}
    learner = _Learner(codec, end, prompt)
    reasons: list[str] = []
    unread: list[Dialect] = []
    for dialect in _DIALECTS:
        found = learner.try_dialect(dialect)
        if isinstance(found, ToolsUnsupported):
            reasons.append(found.reason)
            continue
        for parser in parsers.values():
            if _reads_back(parser, found, probe_reply(0)):
                return learner.describe(dialect, parser, frame_ids, stop_ids)
        unread.append(dialect)
    if unread and call_parser:
        _log.warning("The call parser '%s' does not read the calls that the chat template itself writes.", call_parser)
        return learner.describe(unread[0], parsers[call_parser], frame_ids, stop_ids)
    if unread:
        return ToolsUnsupported(f"writes calls in a way that none of the parsers {', '.join(names)} reads")
    return ToolsUnsupported(reasons[0])


class _Learner:
    def __init__(self, codec: TokenizerAdapter, end: EndOfTurn, prompt: str) -> None:
        self._codec = codec
        self._end = end
        self._prompt = prompt

    def try_dialect(self, dialect: Dialect) -> str | ToolsUnsupported:
        """The text that the template makes of a reply with one call, if it writes all there is in it."""
        reply = probe_reply(0)
        try:
            written = self._render(reply, dialect)
        except ModelError as error:
            return ToolsUnsupported(f"refuses calls or results of tools ({_cause(error)})")
        return self._reply_in(written, reply) or ToolsUnsupported(
            "does not write the calls of a reply and their results"
        )

    def describe(
        self, dialect: Dialect, parser: CallParser, frame_ids: Sequence[int], stop_ids: frozenset[int]
    ) -> ToolSyntax:
        written = self._render(probe_reply(0), dialect)
        return ToolSyntax(
            dialect=dialect,
            parser=parser,
            takes_many_calls=self._takes(probe_reply(0, num_calls=2), dialect, parser),
            writes_text=_SAID in (self._written(probe_reply(0, said=_SAID), dialect) or ""),
            guard=SpecialTokenEscaper(self._codec, (*frame_ids, *self._codec.encode(written)), stop_ids),
        )

    def _takes(self, reply: Message, dialect: Dialect, parser: CallParser) -> bool:
        written = self._written(reply, dialect)
        return written is not None and _reads_back(parser, written, reply)

    def _written(self, reply: Message, dialect: Dialect) -> str | None:
        try:
            return self._reply_in(self._render(reply, dialect), reply)
        except ModelError:
            return None

    def _render(self, reply: Message, dialect: Dialect) -> str:
        results = [Message("tool", _RESULT, (), call.id, call.name) for call in reply.tool_calls]
        return self._codec.render([Message("user", ASKED), reply, *results], [_TOOL], dialect)

    def _reply_in(self, text: str, reply: Message) -> str | None:
        start = 0
        while start < min(len(text), len(self._prompt)) and text[start] == self._prompt[start]:
            start += 1
        stop = find_end_of_reply(text, reply, self._end, start)
        is_whole = stop >= 0 and reply.tool_calls[0].name in text[start:stop] and _RESULT in text[stop:]
        return text[start:stop] if is_whole else None


def _reads_back(parser: CallParser, text: str, reply: Message) -> bool:
    _, calls = parser.read(text)
    wanted = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
    try:
        return [(call.name, json.loads(call.arguments)) for call in calls] == wanted
    except ValueError:
        return False


def _cause(error: ModelError) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")


_MAX_CALLS = 64
"""In one reply. What comes after them is text; so is a list that holds more."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class HermesToolCallParser:
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

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.config.component import CALL_PARSERS
from turnwise.context import tool_calls as call_parsers
from turnwise.protocols import CallParser
from turnwise.types import ToolCall

_PARSERS: dict[str, CallParser] = {name: CALL_PARSERS.get_target(name)() for name in CALL_PARSERS}  # type: ignore[operator]
_EACH = pytest.mark.parametrize("name", _PARSERS)
_QUICK = settings(max_examples=80, deadline=None)

_SOUND = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
_TAGS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", ";", "\n", " "]
_WORD = st.one_of(_SOUND, st.sampled_from([*_TAGS, '"', "\\", "{}", "[]"]))
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _WORD),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_WORD, inner, max_size=3)),
    max_leaves=6,
)
_ARGUMENTS = st.dictionaries(_WORD, _JSON, max_size=3)
_CALL = st.builds(
    ToolCall, _WORD.filter(bool), _ARGUMENTS.map(lambda value: json.dumps(value, ensure_ascii=False)), st.just("")
)
_GARBAGE = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(
            [*_TAGS, "{", "}", "[", "]", '"name"', ":", ",", '"f"', '"arguments"', '"parameters"', "{}", "1"]
        ),
        max_size=25,
    ).map("".join),
)


def _values(calls: tuple[ToolCall, ...] | list[ToolCall]) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


@_EACH
@given(calls=st.lists(_CALL, min_size=1, max_size=4))
@_QUICK
def test_what_a_parser_writes_it_reads(name, calls) -> None:
    parser = _PARSERS[name]
    said, read = parser.read(parser.write(calls))
    assert said == ""
    assert _values(read) == _values(calls)


@_EACH
@given(text=_GARBAGE)
@settings(max_examples=300, deadline=None)
def test_every_text_gives_an_answer_and_a_text_without_calls_stays(name, text) -> None:
    said, calls = _PARSERS[name].read(text)
    if not calls:
        assert said == text
    for call in calls:
        assert call.name
        assert isinstance(json.loads(call.arguments), dict)


@_EACH
@given(before=_GARBAGE, calls=st.lists(_CALL, min_size=1, max_size=2), cut=st.integers(0, 200))
@_QUICK
def test_a_reply_that_was_cut_gives_an_answer(name, before, calls, cut) -> None:
    parser = _PARSERS[name]
    text = (before + parser.write(calls))[:cut]
    said, read = parser.read(text)
    assert read or said == text


@pytest.mark.parametrize(
    ("name", "text", "said", "calls"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", 'I look.\n<tool_call>{"name":"f","arguments":{}}</tool_call>', "I look.", [("f", {})]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>', "",
         [("f", {}), ("g", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', "",
         [("f", {"a": "</tool_call>"})]),
        ("hermes", '<tool_call>no<tool_call>{"name": "f"}</tool_call> so', "<tool_call>no so", [("f", {})]),
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', "", [("f", {"a": 1})]),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "",
         [("f", {}), ("g", {})]),
        ("llama3_json", 'Well.<|python_tag|>{"name": "f", "arguments": {}}\n', "Well.", [("f", {})]),
        ("llama3_json", '{"name": "f", "parameters": {"a": "<|python_tag|>"}}', "", [("f", {"a": "<|python_tag|>"})]),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "", [("f", {"a": 1})]),
        ("mistral", 'So: [TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', "So:",
         [("f", {}), ("g", {})]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", {"a": 1}), ("g", {})]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}', "", [("f", {"a": 1})]),
    ],
)  # fmt: skip
def test_what_models_write_is_read(name, text, said, calls) -> None:
    found, read = _PARSERS[name].read(text)
    assert found == said
    assert _values(read) == calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{} and more"}</tool_call>'),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
        ("hermes", "<tool_call>{'name': 'f'}</tool_call>"),
        ("llama3_json", 'I call {"name": "f", "parameters": {}}'),
        ("llama3_json", '{"name": "f", "parameters": {}} and more'),
        ("llama3_json", '{"name": "f", "parameters": {}};'),
        ("llama3_json", '{"name": "Bern", "population": 134794}'),
        ("llama3_json", '<|python_tag|>f.call(city="Bern")'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, 7]'),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL_CALLS]f[ARGS]"),
        ("mistral", "[TOOL_CALLS]f[ARGS]null"),
        ("mistral", "[TOOL_CALLS]f [TOOL_CALLS]g[ARGS]{}"),
        ("mistral", '[{"name": "f", "arguments": {}}]'),
    ],
)
def test_a_call_that_is_not_well_formed_is_text(name, text) -> None:
    assert _PARSERS[name].read(text) == (text, ())


@_EACH
def test_calls_are_bounded_and_the_rest_is_text(name) -> None:
    parser = _PARSERS[name]
    text = parser.write([ToolCall("f", "{}")] * 500)
    _, calls = parser.read(text)
    assert len(calls) <= 64


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"'),
        ("hermes", '<tool_call>{"a":"\\"'),
        ("hermes", "<tool_call>\n" + " " * 50),
        ("llama3_json", '{"name":"f","parameters":{}};'),
        ("llama3_json", "<|python_tag|>{"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{"),
    ],
)
def test_a_long_reply_is_gone_over_a_bounded_number_of_times(name, piece, monkeypatch) -> None:
    """Counts the characters that are handed to the reader of JSON: a bound on the number of places, not of seconds."""
    tried: list[int] = []
    read_json = call_parsers._read_json
    monkeypatch.setattr(call_parsers, "_read_json", lambda text, start: tried.append(start) or read_json(text, start))
    _PARSERS[name].read(piece * 2000)
    assert len(tried) <= 130

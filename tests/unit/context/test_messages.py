from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.context.messages import Dialect, read_message, read_tool, short_id, write_message
from turnwise.errors import MessageError, WorkflowError
from turnwise.types import ImagePart, Message, TextPart, ToolCall, ToolSchema

_WORD = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=10)
_VALUE = st.one_of(st.none(), st.booleans(), st.integers(), _WORD, st.lists(st.integers(), max_size=2))
_ARGUMENTS = st.dictionaries(_WORD, _VALUE, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
_CALLS = st.lists(st.builds(ToolCall, _WORD.filter(bool), _ARGUMENTS, _WORD), max_size=3).map(tuple)
_PARTS = st.lists(st.one_of(st.builds(TextPart, _WORD), st.builds(ImagePart, _WORD)), min_size=1, max_size=3).filter(
    lambda parts: any(isinstance(part, ImagePart) for part in parts)
)
_CONTENT = st.one_of(_WORD, _PARTS.map(tuple))
_MESSAGE = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user"]), _CONTENT),
    st.builds(Message, st.just("assistant"), _CONTENT, _CALLS),
    st.builds(Message, st.just("tool"), _CONTENT, st.just(()), _WORD, _WORD),
)
_DIALECT = st.builds(Dialect, arguments_are_text=st.booleans(), silence_is_none=st.booleans())


@given(message=_MESSAGE, dialect=_DIALECT)
def test_what_is_written_is_read_again(message, dialect) -> None:
    assert read_message(write_message(message, dialect)) == message
    assert read_message(json.loads(json.dumps(write_message(message, dialect)))) == message
    assert hash(read_message(message)) == hash(message)


@given(given=st.recursive(
    st.one_of(_VALUE, st.sampled_from(["user", "assistant", "tool", "text", "image_url"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "id", "type", "text"]),
            inner, max_size=4,
        ),
    ),
    max_leaves=8,
))  # fmt: skip
def test_whatever_is_given_becomes_a_message_or_a_message_error(given) -> None:
    for read in (read_message, read_tool):
        try:
            found = read(given)
        except MessageError:
            continue
        hash(found)


def test_a_message_of_text_is_written_as_templates_have_always_got_it() -> None:
    assert write_message(Message("user", "hi")) == {"role": "user", "content": "hi"}
    assert write_message(Message("assistant", "")) == {"role": "assistant", "content": ""}
    assert write_message(Message("user", (TextPart("a"), TextPart("b")))) == {"role": "user", "content": "ab"}


def test_calls_and_results_are_read_as_chat_apis_write_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"city":"Bern"}'}}
    asked = read_message({"role": "assistant", "content": None, "tool_calls": [call], "refusal": None})
    assert asked == Message("assistant", "", (ToolCall("look_up", '{"city": "Bern"}', "c1"),))
    result = read_message({"role": "tool", "content": [{"type": "text", "text": "17"}], "tool_call_id": "c1"})
    assert result == Message("tool", "17", (), "c1")
    shown = read_message({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})
    assert shown.content == (ImagePart("data:,"),)
    assert shown.text == ""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("hi", "expected a mapping"),
        ({"content": "hi"}, "expected a mapping such as"),
        ({"role": "user", "content": None}, "'content' is None; expected a text or a list of parts"),
        ({"role": "user", "content": {"text": "hi"}}, "expected a text or a list of parts"),
        ({"role": "user", "content": [{"type": "audio"}]}, "content part {'type': 'audio'}"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages of the assistant alone"),
        ({"role": "assistant", "tool_calls": "f()"}, "expected a list of calls"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "tool call {'function': {}}"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}, "of 'f': arguments '{' are no JSON"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}, "found list"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "'tool_call_id' is 7; expected a text"),
    ],
)
def test_what_is_no_message_is_refused_with_what_was_expected(given, reason) -> None:
    with pytest.raises(MessageError) as raised:
        read_message(given)
    assert reason in str(raised.value)
    assert isinstance(raised.value, ValueError | WorkflowError)


def test_arguments_that_are_no_json_cannot_be_written_for_a_template() -> None:
    message = Message("assistant", "", (ToolCall("f", "{"),))
    with pytest.raises(MessageError, match=r"arguments '{' are no JSON"):
        write_message(message)


def test_a_tool_keeps_the_order_of_its_parameters() -> None:
    function = {"name": "f", "description": "Does.", "parameters": {"type": "object", "b": 1, "a": 2}}
    schema = read_tool({"type": "function", "function": function})
    assert schema == read_tool(function) == ToolSchema.from_mapping(function)
    assert schema.to_mapping() == {"type": "function", "function": function}
    assert list(json.loads(schema.parameters)) == ["type", "b", "a"]
    assert len({schema, read_tool(schema)}) == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (7, "expected a ToolSchema"),
        ({}, "expected {'type': 'function'"),
        ({"function": "f"}, "expected {'type': 'function'"),
        ({"name": "f", "parameters": "none"}, "a JSON schema as 'parameters'"),
        ({"name": "f", "parameters": {"a": {1, 2}}}, "not JSON serializable"),
    ],
)
def test_what_is_no_tool_is_refused_with_what_was_expected(given, reason) -> None:
    with pytest.raises(MessageError) as raised:
        read_tool(given)
    assert reason in str(raised.value)


@given(text=_WORD)
def test_short_ids_have_nine_letters_and_stay(text) -> None:
    short = short_id(text)
    assert len(short) == 9
    assert short.isalnum()
    assert short_id(short) == short

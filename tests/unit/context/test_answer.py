from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnwise.config.schema import AnswerFormat
from turnwise.context.answer import ParsedAnswer, format_instructions, parse_answer, render_answer

_TYPES = ["answer", "think_answer", "plain"]
_PIECES = ["<think>", "</think>", "<answer>", "</answer>", " ", "\n", "a", "b", "||", "|", "<", "/"]
_GARBAGE = st.one_of(st.lists(st.sampled_from(_PIECES), max_size=14).map("".join), st.text(max_size=40))


@pytest.mark.parametrize(
    ("text", "actions", "thought"),
    [
        ("<think>ice</think><answer>Right || Down</answer>", ("Right", "Down"), "ice"),
        ("<think> ice\n</think> \n <answer>Right</answer> trailing", ("Right",), "ice"),
        ("before <think></think><answer>|| Right ||  || Up</answer>", ("Right", "Up"), ""),
        ("<think>a</think> no <think>b</think><answer>Up</answer>", ("Up",), "a</think> no <think>b"),
        ("<think>a</think><answer>Up</answer><answer>Down</answer>", ("Up",), "a"),
        ("<think>a</think><answer>  </answer>", (), "a"),
        ("<think>a</think>so<answer>Up</answer>", (), "a"),
        ("<think>never closed", (), "never closed"),
        ("<answer>Up</answer>", (), ""),
        ("</think><answer>Up</answer>", (), ""),
        ("", (), ""),
    ],
)
def test_think_answer(text, actions, thought) -> None:
    parsed = parse_answer(text, AnswerFormat(type="think_answer", max_actions_per_turn=5))
    assert parsed == ParsedAnswer(actions, bool(actions), thought)


@given(_GARBAGE)
def test_it_agrees_with_the_regular_expression_that_says_it_shortest(text) -> None:
    for kind, pattern in (
        ("think_answer", r"<think>.*?</think>\s*<answer>(.*?)</answer>"),
        ("answer", r"<answer>(.*?)</answer>"),
    ):
        match = re.search(pattern, text, re.DOTALL)
        actions = tuple(part.strip() for part in match[1].split("||") if part.strip())[:5] if match else ()
        parsed = parse_answer(text, AnswerFormat(type=kind, max_actions_per_turn=5))  # type: ignore[arg-type]
        assert parsed.actions == actions
        assert parsed.is_well_formed is bool(actions)


def test_extra_actions_are_cut_and_the_separator_can_be_chosen() -> None:
    fmt = AnswerFormat(type="answer", separator=",", max_actions_per_turn=2)
    assert parse_answer("<answer>a, b, c</answer>", fmt).actions == ("a", "b")


def test_plain_is_the_whole_text_without_the_forced_prefix() -> None:
    fmt = AnswerFormat(type="plain", forced_prefix="Action:")
    assert parse_answer("Action: go north || up\n", fmt) == ParsedAnswer(("go north || up",), True, "")
    assert parse_answer("Action: ", fmt) == ParsedAnswer((), False, "")


class _CountingText(str):
    """Counts the characters that its methods look at."""

    num_read = 0

    def find(self, sub: str, start: int = 0) -> int:  # type: ignore[override]
        found = super().find(sub, start)
        self.num_read += (len(self) if found < 0 else found + len(sub)) - start
        return found

    def rfind(self, sub: str) -> int:  # type: ignore[override]
        found = super().rfind(sub)
        self.num_read += len(self) - max(found, 0)
        return found

    def startswith(self, prefix: str, start: int = 0) -> bool:  # type: ignore[override]
        self.num_read += len(prefix)
        return super().startswith(prefix, start)

    def removeprefix(self, prefix: str) -> str:
        self.num_read += len(self)
        return super().removeprefix(prefix)

    def __getitem__(self, key: int | slice) -> str:  # type: ignore[override]
        part = super().__getitem__(key)
        self.num_read += len(part)
        return part


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("piece", [*_PIECES, "<think></think>", "</think> ", "<answer>x", "<think></think><answer>"])
def test_garbage_of_any_length_is_parsed_in_linear_time(kind, piece) -> None:
    text = _CountingText("<think>" + piece * (20_000 // len(piece)))
    parse_answer(text, AnswerFormat(type=kind))
    # A text of which every tag is searched anew to its end would be read a thousand times.
    assert 0 < text.num_read <= 8 * len(text)


@pytest.mark.parametrize("kind", _TYPES)
@given(actions=st.lists(st.text(alphabet="abc 12", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=5))
def test_a_rendered_answer_parses_to_its_actions(kind, actions) -> None:
    fmt = AnswerFormat(type=kind, max_actions_per_turn=5)
    parsed = parse_answer(render_answer(actions, fmt, thought="why"), fmt)
    assert parsed.is_well_formed
    assert parsed.actions == (tuple(actions) if kind != "plain" else (" ".join(actions),))
    assert parsed.thought == ("why" if kind == "think_answer" else "")


@pytest.mark.parametrize("prefix", ["<think>", "<think>\n", "Well. "])
def test_a_rendered_answer_starts_with_the_forced_prefix_once(prefix) -> None:
    text = render_answer(["Up"], AnswerFormat(type="think_answer", forced_prefix=prefix), thought="ice")
    assert text.startswith(prefix)
    assert text.count("<think>") == 1
    assert text.endswith("ice</think><answer>Up</answer>")


def test_instructions_follow_the_format() -> None:
    assert "<think>your thoughts</think><answer>action 1 ; action 2</answer>" in format_instructions(
        AnswerFormat(type="think_answer", separator=";", max_actions_per_turn=2)
    )
    assert "1 to 3 actions" in format_instructions(AnswerFormat(type="answer", max_actions_per_turn=3))
    single = format_instructions(AnswerFormat(type="answer", max_actions_per_turn=1))
    assert "<answer>action</answer>" in single
    assert "||" not in single
    assert "<answer>" not in format_instructions(AnswerFormat(type="plain"))


def test_a_few_actions_are_shown_as_they_are_to_be_written_and_many_by_one_of_them() -> None:
    few, many = ("Left", "Right"), tuple(f"pull {n}" for n in range(9))
    assert format_instructions(AnswerFormat(), few).endswith("forms: <answer>Left</answer>, <answer>Right</answer>")
    assert format_instructions(AnswerFormat(), many).endswith("<answer>pull 0</answer>")
    assert format_instructions(AnswerFormat(), example="1 + 2").endswith("<answer>1 + 2</answer>")
    pair = format_instructions(AnswerFormat(max_actions_per_turn=2), few)
    assert pair.endswith("<answer>Left || Right</answer>")


@pytest.mark.parametrize("wrong", [{"type": "xml"}, {"separator": ""}, {"max_actions_per_turn": 0}, {"typo": 1}])
def test_wrong_settings_are_refused(wrong) -> None:
    with pytest.raises(ValidationError):
        AnswerFormat(**wrong)


@pytest.mark.parametrize(
    ("text", "kind", "is_well_formed"),
    [
        ("<answer>Up</answer>", "answer", True),
        ("<answer>Up</answer> and more", "answer", False),
        ("well <answer>Up</answer>", "answer", False),
        ("<think>so</think> <answer>Up</answer>", "think_answer", True),
        ("<think>so</think><answer>Up</answer>.", "think_answer", False),
        ("hm <think>so</think><answer>Up</answer>", "think_answer", False),
    ],
)
def test_a_strict_format_refuses_text_around_the_tags(text: str, kind: str, is_well_formed: bool) -> None:
    strict = parse_answer(text, AnswerFormat(type=kind, is_strict=True))  # type: ignore[arg-type]
    lenient = parse_answer(text, AnswerFormat(type=kind))  # type: ignore[arg-type]
    assert strict.is_well_formed is is_well_formed
    assert strict.actions == (("Up",) if is_well_formed else ())
    assert lenient.actions == ("Up",)

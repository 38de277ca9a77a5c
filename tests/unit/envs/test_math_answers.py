"""Answers compared as mathematics: spellings, differences, real gold answers, garbage."""

from __future__ import annotations

import gzip
import json
import random
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.base import make_env
from turnwise.envs.metamathqa import grading as second_opinion
from turnwise.envs.metamathqa.grading import (
    MAX_ANSWER_LENGTH,
    MathVerifier,
    final_answer,
    find_final_answer,
    is_same_answer,
    is_same_by_math_verify,
    plain_mathematics,
)
from turnwise.errors import ConfigError

from .math_data import find_data

SAME = [
    ("5", "5.0"),
    ("+5", "5."),
    ("1/2", r"\frac12"),
    ("0.5", r"\dfrac{1}{2}"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"6\frac15", "6.2"),
    ("6 3/4", "6.75"),
    ("1,234", "1234"),
    (r"\$16,\!386.16", "$16386.16"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"),
    ("-$5", "\N{MINUS SIGN}5"),
    (r"75\%", "75 percent"),
    ("2 million", "2,000,000"),
    ("3 dozen eggs", "36"),
    ("85 feet", r"85\text{ feet}"),
    ("90\\text{ square\nunits}", "90"),
    ("5 dollars a day", "5"),
    ("25km", r"25 \, \text{km}"),
    ("9 cm^2", r"9\text{ cm}^2"),
    (r"120^\circ", "120\N{DEGREE SIGN}"),
    ("1.5e3", "1500"),
    (r"6.72\times 10^{-5}", ".0000672"),
    ("x = 5", "5"),
    (r"\text{(E)}", "E"),
    (r"\text{even}", "Even"),
    (r"9\text{ a.m.}", "9 a.m."),
    (r"\frac{\sqrt6}3", r"\frac{\sqrt{6}}{3}"),
    ("x^{2}+1", "x^2 + 1"),
    ("**5**", "5"),
    ("(4,5)", "( 4 , 5.0 )"),
    (r"\left[\frac{1}{2}, \frac{4}{3}\right]", "[0.5,4/3]"),
    ("1,-2", "-2 and 1"),
    (r"\{1, 2\}", "2, 1"),
    ("70,110", "70, 110"),
    ("The answer is: 5", "#### 5"),
    (r"so we get $\boxed{\frac{3}{4}}$.", "0.75"),
]
DIFFERENT = [
    ("5", "6"),
    ("-5", "5"),
    ("1 2", "12"),
    ("0.333", "1/3"),
    ("5%", "0.05"),
    ("2 million", "2"),
    ("2x", "2"),
    ("2xy", "2"),
    ("2 pi", "2"),
    ("5!", "5"),
    ("7602_8", "7602"),
    ("9 a.m.", "9 p.m."),
    ("3*4", "12"),
    ("1/0", "1"),
    ("x^2", "x2"),
    ("a", "A"),
    ("5 or 6", "5"),
    ("(4,5)", "(5,4)"),
    ("[0,1)", "[0,1]"),
    ("The answer is: 5. The answer is: 6", "5"),
    ("", ""),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_spellings_of_one_answer_are_the_same(left: str, right: str) -> None:
    assert is_same_answer(left, right)
    assert is_same_answer(right, left)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_answers_differ(left: str, right: str) -> None:
    assert not is_same_answer(left, right)
    assert not is_same_answer(right, left)


@given(st.fractions(max_denominator=500), st.fractions(max_denominator=500))
def test_fractions_are_equal_exactly_when_their_numbers_are(left: Fraction, right: Fraction) -> None:
    spelling = rf"\frac{{{left.numerator}}}{{{left.denominator}}}"
    assert is_same_answer(spelling, str(left))
    assert is_same_answer(spelling, str(right)) == (left == right)


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_thousands_and_cents_change_nothing(whole: int, cents: int) -> None:
    assert is_same_answer(f"{whole:,}.{cents:02}", f"{whole}.{cents:02}0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He has 3.\nThe answer is: 12", "12"),
        ("12\n#### 1,200", "1,200"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"#### 7 \boxed{8}", "8"),
        (r"\boxed{5", None),
        ("just 5", None),
    ],
)
def test_the_marked_answer_is_found(text: str, expected: str | None) -> None:
    assert find_final_answer(text) == expected


def test_without_a_mark_the_whole_text_is_the_answer_unless_it_is_long() -> None:
    assert final_answer(" 5 apples. ") == "5 apples"
    assert final_answer("5" * MAX_ANSWER_LENGTH) != ""
    assert final_answer("5" * (MAX_ANSWER_LENGTH + 1)) == ""


# --- real answers ----------------------------------------------------------------------------------------------------


def gold_answers(name: str) -> list[str]:
    with gzip.open(find_data(f"math/{name}.jsonl.gz"), "rt") as file:
        return [json.loads(line)["answer"] for line in file]


def spellings(answer: str) -> list[str]:
    varied = [
        f"The answer is: {answer}",
        f"#### {answer}",
        rf"Thus $\boxed{{{answer}}}$.",
        f"${answer}$.",
        answer.replace(r"\frac", r"\dfrac"),
    ]
    if answer.lstrip("-").isdigit():
        number = int(answer)
        varied += [f"{number:,}", rf"\${number}", f"{number}.00", rf"\frac{{{2 * number}}}{{2}}", f"x = {number}"]
        varied += [f"{number} marbles", rf"{number}\text{{ marbles}}", f"+{number}" if number >= 0 else f"{number}"]
    return varied


@pytest.mark.parametrize("name", ["gsm8k_test", "svamp_test", "math_test_1000", "metamath_gsm8k_backward"])
def test_real_answers_are_themselves_in_any_spelling_and_no_other(name: str) -> None:
    answers = sorted(set(gold_answers(name)))
    assert len(answers) > 100
    wrong = [(answer, other) for answer in answers for other in spellings(answer) if not is_same_answer(other, answer)]
    assert wrong == []
    rng = random.Random(0)
    pairs = [rng.sample(answers, 2) for _ in range(2000)]
    assert [pair for pair in pairs if is_same_answer(*pair) and not is_same_number(*pair)] == []


def is_same_number(left: str, right: str) -> bool:
    """By an arithmetic of its own: the reals behind the two LaTeX spellings are equal."""

    def value(text: str) -> Fraction | None:
        text = text.strip().replace("dfrac", "frac").replace(r"\%", "").replace(r"^\circ", "").replace(r",\!", "")
        text = text.replace(r"\frac{", "").replace("}{", "/").rstrip("}")
        try:
            return Fraction(text)
        except (ValueError, ZeroDivisionError):
            return None

    return value(left) is not None and value(left) == value(right)


# --- garbage ---------------------------------------------------------------------------------------------------------


COMMANDS = ("\\frac", "\\sqrt", "\\boxed{", "\\text{", "####", " ")
SYMBOLS = (*COMMANDS, *"{}()[]^_,.120/*%e+-$")


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    assert is_same_answer(text, "5") in (True, False)


@given(st.lists(st.sampled_from(SYMBOLS)))
def test_no_heap_of_symbols_raises(symbols: list[str]) -> None:
    text = "".join(symbols)
    assert is_same_answer(text, "5") in (True, False)


@pytest.mark.parametrize(
    "garbage",
    [
        "{" * 10_000,
        r"\frac" * 2_500,
        r"\boxed{" * 1_500,
        "answer is " * 1_000,
        "1," * 5_000,
        "9" * 10_000,
        "^" * 10_000,
        " " * 10_000,
        "9^{9^{9}}",
        "1e999",
    ],
)
def test_ten_kilobytes_of_garbage_are_no_answer(garbage: str) -> None:
    assert not is_same_answer(garbage, "5")
    assert not is_same_answer(garbage[: MAX_ANSWER_LENGTH - 1], "5")


def test_deep_nesting_is_left_as_it_is() -> None:
    deep = "{" * 150 + "5" + "}" * 150
    assert plain_mathematics(deep) == deep


# --- math-verify -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_math_verify_knows_algebra_and_survives_a_tower_of_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    assert not is_same_answer("(x+1)^2", "x^2+2x+1")
    assert is_same_by_math_verify("(x+1)^2", "x^2+2x+1")
    assert is_same_by_math_verify(r"\frac{2}{\sqrt{2}}", r"\sqrt{2}")
    assert not is_same_by_math_verify("(x+1)^2", "x^2+1")
    assert is_same_by_math_verify("1/2", "0.5")
    assert not is_same_by_math_verify("", "5")
    monkeypatch.setattr(second_opinion, "DEADLINE_S", 1.0)
    assert not is_same_by_math_verify("9^{9^{9^{9}}}", "x^2+1")
    monkeypatch.undo()
    assert is_same_by_math_verify("(x+1)^2", "x^2+2x+1")


def test_what_is_exactly_equal_needs_no_process() -> None:
    verifier = MathVerifier()
    assert verifier.is_same("0.5", "1/2")
    assert verifier._process is None


def test_a_missing_math_verify_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ConfigError, match=r"env.grader: math_verify needs .* pip install 'turnwise\[math\]'"):
        make_env("metamathqa", grader="math_verify")

r"""Whether two answers are the same mathematics, by exact arithmetic and one spelling for everything else.

In come two answers as they were spelt; out comes a yes or no. Numbers are compared as fractions (`0.5`, `\frac12`,
`1/2`, `\$1,000.00`, `6\frac15`, `75\%`, `85 feet`, `2 million`), lists in any order, points and intervals in order, and
the rest by its spelling without LaTeX. The question fixes the unit, so units, currencies and percent signs are left
away. It refuses to compute: `3*4` is not 12, or a reply could leave the work to the grader. Nothing is evaluated, and
the time is bounded by the length of the text.
"""

from __future__ import annotations

import atexit
import json
import re
import select
import subprocess
import sys
import threading
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from turnwise.config.settings import require_package
from turnwise.errors import EnvError

MAX_ANSWER_LENGTH = 200
"""Longer texts are no answers; whoever compares need not fear them."""

_MARK = re.compile(r"(?:the\s+)?(?:final\s+)?answer\s+is\s*:?|####", re.IGNORECASE)
_BOX = r"\boxed{"


def find_final_answer(text: str) -> str | None:
    """What is marked as the answer, the last one of several; None where nothing is marked."""
    marks = list(_MARK.finditer(text))
    tail = text[marks[-1].end() :] if marks else text
    boxed = _last_boxed(tail)
    if boxed is not None:
        return boxed
    if not marks:
        return None
    line = tail.strip().split("\n", 1)[0]
    return _without_stop(line)


def final_answer(text: str) -> str:
    """The marked answer, or the whole text; empty where it is too long to be one."""
    found = find_final_answer(text)
    answer = _without_stop(text) if found is None else found
    return answer if len(answer) <= MAX_ANSWER_LENGTH else ""


def _without_stop(text: str) -> str:
    text = text.strip()
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text


def _last_boxed(text: str) -> str | None:
    """The content of the last box whose braces close."""
    begin = text.rfind(_BOX)
    if begin < 0:
        return None
    depth = 1
    for at in range(begin + len(_BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + len(_BOX) : at].strip()
    return None


MAX_DEPTH = 100

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s+|.", re.DOTALL)
_NEGATIVE_SPACE = re.compile(r"\\!\s*")
_ATOM = re.compile(r"[\w.]+|sqrt\([\w.]+\)|pi", re.ASCII)
_SYMBOLS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{FRACTION SLASH}": "/",
        "÷": "/",
        "\N{MULTIPLICATION SIGN}": "*",
        "·": "*",
        "²": "^2",
        "³": "^3",
        "°": r"\circ ",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "\N{UNION}": r"\cup ",
        "\N{NO-BREAK SPACE}": " ",
    }
)
_FRACTIONS = frozenset({r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"})
_WORDS = frozenset({r"\text", r"\textbf", r"\textit", r"\textrm", r"\mbox", r"\mathrm", r"\mathbf", r"\operatorname"})
_NOTHING = frozenset({r"\left", r"\right", r"\displaystyle", r"\$", "$", r"\circ", r"\(", r"\)", r"\[", r"\]"})
_SPACES = frozenset({r"\,", r"\;", r"\:", r"\ ", "~", r"\quad", r"\qquad"})
_PLAIN = {r"\%": "%", r"\times": "*", r"\cdot": "*", r"\div": "/", r"\pi": "pi", r"\{": "{", r"\}": "}"}


def plain_mathematics(text: str) -> str:
    """The text without LaTeX's ways of saying the same thing twice; single spaces between its parts."""
    if _depth(text) > MAX_DEPTH:
        return " ".join(text.split())
    # A negative space stands inside long numbers, where the blanks behind it mean nothing.
    tokens = _TOKEN.findall(_NEGATIVE_SPACE.sub("", text.translate(_SYMBOLS)))
    return " ".join(_Reader(tokens).read_all().split())


def _depth(text: str) -> int:
    """How deep the reader may have to go: every command can take an argument, braced or not."""
    return text.count("{") + text.count("\\") + text.count("^") + text.count("_")


class _Reader:
    """Reads tokens from left to right; arguments of commands are read by the same rules."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def read_all(self) -> str:
        """Everything; a closing brace that nothing opened is left away."""
        parts = []
        while self._at < len(self._tokens):
            parts.append(self._read_group())
        return "".join(parts)

    def _read_group(self) -> str:
        """Up to the closing brace of the group, or to the end."""
        text = ""
        while self._at < len(self._tokens) and (token := self._next()) != "}":
            piece = self._read_token(token)
            if token in "^_":
                text = text.rstrip() + piece
            elif token in _FRACTIONS and text[-1:].isdigit():
                # A whole number in front of a fraction is a mixed number.
                text += f" {piece}"
            else:
                text += piece
        return text

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _read_token(self, token: str) -> str:
        if token == "{":
            return self._read_group()
        if token in _FRACTIONS:
            above, below = self._read_argument(), self._read_argument()
            return f"{_bracket(above)}/{_bracket(below)}"
        if token == r"\sqrt":
            return f"sqrt({self._read_argument()})"
        if token in _WORDS:
            return f" {self._read_argument()} "
        if token == r"\boxed":
            return self._read_argument()
        if token in "^_":
            argument = self._read_argument()
            return f"{token}{_bracket(argument)}" if argument else ""
        if token in _NOTHING:
            return ""
        return " " if token in _SPACES else _PLAIN.get(token, token)

    def _read_argument(self) -> str:
        while self._at < len(self._tokens) and self._tokens[self._at].isspace():
            self._at += 1
        if self._at == len(self._tokens) or self._tokens[self._at] == "}":
            return ""
        return self._read_token(self._next()).strip()


def _bracket(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"


_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"
_DECIMAL = re.compile(
    rf"(?P<sign>[+-]?)\s?(?P<number>{_DIGITS}(?:\.\d*)?|\.\d+)"
    r"(?:\s?\*\s?10\^\(?(?P<power>[+-]?\d{1,3})\)?|e(?P<exponent>[+-]?\d{1,3})(?!\w))?",
    re.ASCII,
)
_MIXED = re.compile(r"(?P<sign>[+-]?)\s?(?P<whole>\d+)\s(?P<above>\d+)\s?/\s?(?P<below>\d+)", re.ASCII)
_RATIO = re.compile(rf"(?P<sign>[+-]?)\s?\(?(?P<above>-?{_DIGITS})\)?\s?/\s?\(?(?P<below>-?{_DIGITS})\)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z]\s?=\s?")
_CONNECTIVE = re.compile(r"\s(?:and|or)\s")
_UNIT_WORD = re.compile(r"[A-Za-z]{2,}\.?(?:\^[23])?")
_SHORT_UNITS = frozenset(
    ["km", "cm", "mm", "kg", "mg", "ml", "ft", "lb", "lbs", "oz", "hr", "hrs", "mi", "mph", "min", "sec"]
)
"""Units that may stand right behind a number; other short words there are variables, as in `2xy`."""
_NO_UNITS = frozenset(
    ["pi", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "mod", "choose", "am", "pm"]
)
_FACTORS = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_OPENING, _CLOSING = "([{", ")]}"

_Item = Fraction | str
_Reading = _Item | tuple[object, ...]


def is_same_answer(given: str, expected: str) -> bool:
    """Whether the final answer in one text is that in the other, in any spelling."""
    return not _readings(final_answer(given)).isdisjoint(_readings(final_answer(expected)))


@lru_cache(maxsize=4096)
def _readings(answer: str) -> frozenset[_Reading]:
    """What an answer may mean; `70,110` is a number and a list of two."""
    plain = plain_mathematics(answer).strip("*` ").rstrip(" .,;")
    if not plain:
        return frozenset()
    found: set[_Reading] = {_read_item(plain)}
    pieces = _pieces(_CONNECTIVE.sub(",", plain))
    if len(pieces) > 1:
        found.add(_unordered(pieces))
    elif _is_bracketed(plain) and len(inner := _pieces(plain[1:-1])) > 1:
        is_set = plain[0] == "{"
        found.add(_unordered(inner) if is_set else (plain[0], *map(_read_item, inner), plain[-1]))
    return frozenset(found)


def _unordered(pieces: list[str]) -> tuple[object, ...]:
    return ("all of", *sorted(map(_read_item, pieces), key=str))


def _read_item(text: str) -> _Item:
    """One number, or one spelling."""
    text = text.strip()
    if _is_bracketed(text) and text[0] == "(" and len(_pieces(text[1:-1])) == 1:
        text = text[1:-1].strip()
    text = _NAME.sub("", text, count=1) if _NAME.match(text) else text
    number = _read_number(text)
    if number is not None:
        return number
    spelling = "".join(text.split()).rstrip(".")
    # A single letter is a variable, where capitals matter; a longer word is a word.
    return spelling.casefold() if len(spelling) > 1 and spelling.replace(".", "").isalpha() else spelling


def _read_number(text: str) -> Fraction | None:
    text = text.lstrip("€£¥")
    if match := _MIXED.match(text):
        part = _divide(match["above"], match["below"])
        value = None if part is None else int(match["whole"]) + part
    elif match := _RATIO.match(text):
        value = _divide(match["above"], match["below"])
    elif match := _DECIMAL.match(text):
        value = Fraction(_without_commas(match["number"]).rstrip("."))
        value *= Fraction(10) ** int(match["power"] or match["exponent"] or 0)
    else:
        return None
    factor = _read_unit(text[match.end() :])
    if factor is None or value is None:
        return None
    return value * factor * (-1 if match["sign"] == "-" else 1)


def _without_commas(digits: str) -> str:
    return digits.replace(",", "")


def _divide(above: str, below: str) -> Fraction | None:
    divisor = int(_without_commas(below))
    return Fraction(int(_without_commas(above)), divisor) if divisor else None


def _read_unit(text: str) -> int | None:
    """What a number is multiplied by because of the words behind it; None where they are no unit."""
    if text.strip() in ("", "%"):
        return 1
    first, *rest = re.split(r"[\s/-]+", text.strip())
    is_attached = not text[0].isspace()
    if is_attached and len(first) < 4 and first.lower() not in _SHORT_UNITS:
        return None
    if not all(_is_unit_word(word) for word in (first, *(word for word in rest if word != "a"))):
        return None
    return _FACTORS.get(first.lower(), 1)


def _is_unit_word(word: str) -> bool:
    return _UNIT_WORD.fullmatch(word) is not None and word.lower() not in _NO_UNITS


def _is_bracketed(text: str) -> bool:
    """Whether the bracket that opens the text closes at its end."""
    if len(text) < 2 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return False
    depth = 0
    for at, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0:
            return at == len(text) - 1
    return False


def _pieces(text: str) -> list[str]:
    """The text cut at the commas outside all brackets."""
    pieces, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth <= 0:
            pieces.append(text[begin:at])
            begin = at + 1
    return [*pieces, text[begin:]]


DEADLINE_S = 5.0
START_DEADLINE_S = 120.0
"""Importing sympy takes a second, and many on a busy machine."""


class MathVerifier:
    """One worker process for all environments of this process, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def is_same(self, given: str, expected: str) -> bool:
        if is_same_answer(given, expected):
            return True
        pair = final_answer(given), final_answer(expected)
        if not all(pair):
            return False
        with self._lock:
            return self._ask(*pair)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, given: str, expected: str) -> bool:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps([given, expected]) + "\n")
        process.stdin.flush()
        answer = _read_line(process, DEADLINE_S)
        if answer is None:
            self.close()
        return answer is True

    def _start(self) -> subprocess.Popen[str]:
        worker = str(Path(__file__).with_name("math_verify_worker.py"))
        # -P: the modules beside the worker must not hide packages of the same name.
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if _read_line(self._process, START_DEADLINE_S) != "ready":
            self.close()
            raise EnvError("env.grader: the process of math-verify did not start; try env.grader=exact.")
        return self._process


def _read_line(process: subprocess.Popen[str], deadline_s: float) -> object:
    """What the worker says; None where it says nothing in time or is gone."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], deadline_s)[0]:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line else None


_VERIFIER = MathVerifier()
atexit.register(_VERIFIER.close)


def is_same_by_math_verify(given: str, expected: str) -> bool:
    return _VERIFIER.is_same(given, expected)


def require_math_verify() -> None:
    """Before the first question, not after the first reply."""
    require_package("math_verify", extra="math", asked_by="env.grader: math_verify")

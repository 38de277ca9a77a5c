r"""Whether two answers are the same mathematics, by exact arithmetic and one spelling for everything else.

In come two answers as they were spelt; out comes a yes or no. Numbers are compared as fractions (`0.5`, `\frac12`,
`1/2`, `\$1,000.00`, `6\frac15`, `75\%`, `85 feet`, `2 million`), lists in any order, points and intervals in order, and
the rest by its spelling without LaTeX. The question fixes the unit, so units, currencies and percent signs are left
away. It refuses to compute: `3*4` is not 12, or a reply could leave the work to the grader. Nothing is evaluated, and
the time is bounded by the length of the text.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from turnwise.envs.metamathqa.final_answer import final_answer
from turnwise.envs.metamathqa.latex import plain_mathematics

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

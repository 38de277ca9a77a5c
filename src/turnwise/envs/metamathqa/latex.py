r"""LaTeX as plain mathematics: `\dfrac{\sqrt6}{3}` becomes `sqrt(6)/3`.

In comes an answer as a person or a model spells it; out comes one spelling for many: fractions with a slash, powers
with a caret, no sizes, no thin spaces, no currency. Text without LaTeX comes out as it is. It refuses to compute: what
the symbols are worth is not its business. Linear in the text, and nested no deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import re

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

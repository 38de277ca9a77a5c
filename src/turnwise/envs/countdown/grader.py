"""Whether an answer uses the given numbers, and what it makes.

In come an answer and the numbers of a puzzle; out comes the exact value, or that the answer is no expression over these
numbers. Nothing is executed: the answer is cut into tokens, and a number that was not given, or not so often, ends the
reading before anything is computed. Long answers are refused unread, and the parser keeps a stack of its own, so no
answer can take long or nest too deep. It refuses to know the target and the reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, mul, sub
from typing import Any

from turnwise.envs.countdown.solver import Value, divide

MAX_ANSWER_CHARS = 400
"""Six numbers of four digits with every bracket that helps need a tenth of it."""
_TOKEN = re.compile(r"[0-9]+|[^\s]")
_OPERATORS: Mapping[str, Callable[[Any, Any], Value]] = {"+": add, "-": sub, "*": mul, "/": divide}
_NEGATE = "negate"
_RANKS = {"+": 1, "-": 1, "*": 2, "/": 2, _NEGATE: 3}


@dataclass(frozen=True, slots=True)
class Graded:
    """An answer with the right numbers; `value` is None where it divides by zero."""

    text: str
    value: Value | None


def grade(answer: str, numbers: Sequence[int]) -> Graded | None:
    """The answer's value; None where it is no expression that uses every number exactly once."""
    if len(answer) > MAX_ANSWER_CHARS:
        return None
    tokens = _TOKEN.findall(answer)
    if sorted(token for token in tokens if token[0].isdecimal()) != sorted(map(str, numbers)):
        return None
    postfix = _to_postfix(tokens)
    return None if postfix is None else Graded(" ".join(answer.split()), _evaluate(postfix))


def _to_postfix(tokens: Sequence[str]) -> list[str] | None:
    """Operators behind their operands; None where the tokens are no expression.

    An operator waits on a stack until one that binds no tighter, a bracket or the end lets it act.
    """
    postfix: list[str] = []
    waiting: list[str] = []
    is_operand_next = True
    for token in tokens:
        if is_operand_next and token == "-":
            waiting.append(_NEGATE)
        elif is_operand_next and token == "(":
            waiting.append(token)
        elif is_operand_next and token[0].isdecimal():
            postfix.append(token)
            is_operand_next = False
        elif not is_operand_next and token in _OPERATORS:
            while waiting and waiting[-1] != "(" and _RANKS[waiting[-1]] >= _RANKS[token]:
                postfix.append(waiting.pop())
            waiting.append(token)
            is_operand_next = True
        elif not is_operand_next and token == ")" and "(" in waiting:
            while (operator := waiting.pop()) != "(":
                postfix.append(operator)
        else:
            return None
    if is_operand_next or "(" in waiting:
        return None
    return postfix + waiting[::-1]


def _evaluate(postfix: Sequence[str]) -> Value | None:
    values: list[Value] = []
    for token in postfix:
        if token[0].isdecimal():
            values.append(int(token))
        elif token == _NEGATE:
            values.append(-values.pop())
        else:
            right, left = values.pop(), values.pop()
            if token == "/" and right == 0:
                return None
            values.append(_OPERATORS[token](left, right))
    return values[0]

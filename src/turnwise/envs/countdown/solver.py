"""Solutions of Countdown puzzles: every number once, with + - * / and brackets.

In come numbers, a target and operators; out comes a solution as text, or the knowledge that there is none. The search
is complete and its arithmetic exact. It refuses to know who asks and what a solution is worth.

A solution splits the numbers into two sides. For every value of the smaller side, the other side must make one of at
most six values; sides of up to three numbers are looked up in a table of all they can make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

Value: TypeAlias = int | Fraction
"""Exact; whole values stay ints, which are quicker and equal to the fractions they stand for."""
Expression: TypeAlias = "int | tuple[str, Expression, Expression]"
Side: TypeAlias = tuple[int, ...]

_MAX_TABLE = 3
_RANKS = {"+": 1, "-": 1, "*": 2, "/": 2}


def solve(numbers: Sequence[int], target: int, operators: str = "+-*/") -> str | None:
    """One solution, always the same for the same puzzle; None where there is none."""
    expression = _Search(numbers, operators).find(tuple(range(len(numbers))), target)
    return None if expression is None else write(expression)


def write(expression: Expression) -> str:
    """As text, with brackets only where they are needed."""
    if isinstance(expression, int):
        return str(expression)
    operator, left, right = expression
    # On the right, equal rank needs brackets as well: a - (b - c) is not a - b - c.
    needs_left = _rank(left) < _RANKS[operator]
    needs_right = _rank(right) < _RANKS[operator] + (operator in "-/")
    return f"{_wrap(left, needs_left)} {operator} {_wrap(right, needs_right)}"


def _rank(expression: Expression) -> int:
    return 3 if isinstance(expression, int) else _RANKS[expression[0]]


def _wrap(expression: Expression, needs_brackets: bool) -> str:
    return f"({write(expression)})" if needs_brackets else write(expression)


def divide(dividend: Value, divisor: Value) -> Value:
    """Exact, and whole where it can be."""
    quotient = Fraction(dividend) / divisor
    return quotient.numerator if quotient.denominator == 1 else quotient


class _Search:
    """One puzzle. A side is a tuple of places in the list of numbers, since numbers may be equal."""

    def __init__(self, numbers: Sequence[int], operators: str) -> None:
        self._numbers = tuple(numbers)
        self._operators = operators
        self._tables: dict[Side, dict[Value, Expression]] = {}

    def find(self, side: Side, target: Value) -> Expression | None:
        if len(side) <= _MAX_TABLE:
            return self._table(side).get(target)
        for small, large in _splits(side):
            for value, expression in self._table(small).items():
                for operator, needed, is_small_left in self._counterparts(value, target):
                    other = self.find(large, needed)
                    if other is not None:
                        return (operator, expression, other) if is_small_left else (operator, other, expression)
        return None

    def _counterparts(self, value: Value, target: Value) -> Iterator[tuple[str, Value, bool]]:
        """What the other side must be for each operator, and whether `value` then stands on the left."""
        if "+" in self._operators:
            yield "+", target - value, True
        if "-" in self._operators:
            yield "-", value - target, True
            yield "-", target + value, False
        if "*" in self._operators and value:
            yield "*", divide(target, value), True
        if "/" in self._operators:
            if target and value:
                yield "/", divide(value, target), True
            if value:
                yield "/", target * value, False

    def _table(self, side: Side) -> dict[Value, Expression]:
        """Everything a side can make, each value with the first expression found for it."""
        if side not in self._tables:
            table: dict[Value, Expression] = {}
            if len(side) == 1:
                table[self._numbers[side[0]]] = self._numbers[side[0]]
            for small, large in _splits(side):
                for first, left in self._table(small).items():
                    for second, right in self._table(large).items():
                        for operator, value, is_first_left in self._combine(first, second):
                            expression = (operator, left, right) if is_first_left else (operator, right, left)
                            table.setdefault(value, expression)
            self._tables[side] = table
        return self._tables[side]

    def _combine(self, first: Value, second: Value) -> Iterator[tuple[str, Value, bool]]:
        if "+" in self._operators:
            yield "+", first + second, True
        if "-" in self._operators:
            yield "-", first - second, True
            yield "-", second - first, False
        if "*" in self._operators:
            yield "*", first * second, True
        if "/" in self._operators:
            if second:
                yield "/", divide(first, second), True
            if first:
                yield "/", divide(second, first), False


def _splits(side: Side) -> Iterator[tuple[Side, Side]]:
    """Every way to part a side into two, the smaller one first."""
    for size in range(1, len(side) // 2 + 1):
        for small in combinations(side, size):
            # Of two halves each pair would come twice; the half with the first number goes first.
            if 2 * size < len(side) or small[0] == side[0]:
                yield small, tuple(place for place in side if place not in small)

"""Countdown puzzles: settings, random puzzles, files, solver and grader.

A puzzle depends on settings, seed and split alone. Random puzzles are solvable by construction.
"""

from __future__ import annotations

import random
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from operator import add, mul, sub
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

from pydantic import Field, field_validator, model_validator

from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.rows import Row, RowFile, RowFormat, Splits, load_rows, split_rows
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

MAX_NUMBERS = 6
"""The solver looks at every way to combine them, and there are very many beyond this."""
_OF_DRAWN_PUZZLES = ("min_numbers", "max_numbers", "max_number", "min_target", "max_target")


class CountdownParams(Settings):
    """The settings of Countdown."""

    path: str | None = None
    """A file of puzzles with the fields `nums` and `target`: JSON, JSON lines, CSV or Parquet; null draws random
    ones."""
    min_numbers: int = Field(default=3, ge=2, le=MAX_NUMBERS)
    """The fewest numbers of a random puzzle."""
    max_numbers: int = Field(default=4, ge=2, le=MAX_NUMBERS)
    """The most numbers of a random puzzle."""
    max_number: int = Field(default=99, ge=1, le=9999)
    """Numbers of a random puzzle go from 1 to this one."""
    min_target: int = Field(default=10, ge=0)
    """The smallest target of a random puzzle."""
    max_target: int = Field(default=99, ge=0)
    """The largest target of a random puzzle."""
    operators: str = Field(default="+-*/", min_length=1)
    """A random puzzle can be solved with these, and the oracle uses no other; answers may use all of + - * /."""
    attempts: int = Field(default=1, ge=1)
    """Answers with the right numbers that may be given; each wrong one is shown with its value."""
    numbers_reward: float = Field(default=0.1, ge=0, lt=1)
    """What an answer with the right numbers and a wrong value is worth; a right one is worth 1."""
    eval_share: float = Field(default=0.1, gt=0, lt=1)
    """The share of all puzzles that is held out of training, chosen by a hash of each."""

    @field_validator("operators")
    @classmethod
    def _known_operators(cls, given: str) -> str:
        if not set(given) <= set("+-*/") or len(set(given)) < len(given):
            raise ValueError(f"{given!r} given; expected some of + - * /, each at most once, such as '+-'.")
        return given

    @model_validator(mode="after")
    def _agree(self) -> CountdownParams:
        for lower, upper in (("min_numbers", "max_numbers"), ("min_target", "max_target")):
            if getattr(self, upper) < getattr(self, lower):
                raise ValueError(f"{upper} {getattr(self, upper)} is below {lower} {getattr(self, lower)}.")
        return self

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return {} if self.path is None else self.idle(*_OF_DRAWN_PUZZLES, why=f"while {path}.path is set")


MAX_DRAWS = 20_000


class Puzzle(NamedTuple):
    """Make `target` out of all of `numbers`."""

    numbers: tuple[int, ...]
    target: int


def draw_puzzle(params: CountdownParams, seed: int, split: str) -> Puzzle:
    """The puzzle of a seed: draws until one has a wanted target and falls into the split."""
    rng = make_rng("puzzle", seed)
    for _ in range(MAX_DRAWS):
        count = rng.randint(params.min_numbers, params.max_numbers)
        numbers = tuple(rng.randint(1, params.max_number) for _ in range(count))
        target = _make_target(numbers, params.operators, rng)
        if target is None or not params.min_target <= target <= params.max_target:
            continue
        puzzle = Puzzle(numbers, target)
        if split_of(puzzle, params.eval_share) == split:
            return puzzle
    raise TaskError(
        f"countdown: none of {MAX_DRAWS} random puzzles fits the settings min_numbers={params.min_numbers}, "
        f"max_numbers={params.max_numbers}, max_number={params.max_number}, min_target={params.min_target}, "
        f"max_target={params.max_target}, operators='{params.operators}', eval_share={params.eval_share:g} "
        f"(split {split}, seed {seed}). Loosen one of them."
    )


def split_of(puzzle: Puzzle, eval_share: float) -> str:
    """The order of the numbers does not count: it is the same puzzle."""
    key = f"{sorted(puzzle.numbers)}/{puzzle.target}".encode()
    return "eval" if crc32(key) % 10_000 < eval_share * 10_000 else "train"


def _make_target(numbers: tuple[int, ...], operators: str, rng: random.Random) -> int | None:
    """What random operators make of the numbers, in random pairs; None where a division leaves a rest."""
    values = list(numbers)
    while len(values) > 1:
        left = values.pop(int(rng.random() * len(values)))
        right = values.pop(int(rng.random() * len(values)))
        operator = operators[int(rng.random() * len(operators))]
        if operator == "/" and (right == 0 or left % right):
            return None
        values.append(_apply(operator, left, right))
    return values[0]


def _apply(operator: str, left: int, right: int) -> int:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left // right


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


MAX_ANSWER_CHARS = 400
"""Six numbers of four digits with every bracket that helps need a tenth of it."""
_TOKEN = re.compile(r"[0-9]+|[^\s]")
_OPERATORS: Mapping[str, Callable[[Any, Any], Value]] = {"+": add, "-": sub, "*": mul, "/": divide}
_NEGATE = "negate"
_OPERATOR_RANKS = {"+": 1, "-": 1, "*": 2, "/": 2, _NEGATE: 3}


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
            while waiting and waiting[-1] != "(" and _OPERATOR_RANKS[waiting[-1]] >= _OPERATOR_RANKS[token]:
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


_FORMAT = RowFormat(
    setting="env.path",
    items="puzzles",
    file="a JSON, JSONL, CSV or Parquet file of puzzles",
    row=f"an object with 'nums', a list of 2 to {MAX_NUMBERS} whole numbers from 0, and 'target', one more",
)

_NUMBERS = re.compile(r"\[?\s*[0-9]{1,18}([\s,;]+[0-9]{1,18})*\s*\]?")
"""How a list of numbers stands in one value of a CSV file: `[1, 2]`, `1 2` or `1;2`."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def load_puzzles(path: str, eval_share: float) -> Splits[Puzzle]:
    """Load the puzzles of a file, divided by a hash of each."""
    return _load_once(RowFile.find(path, _FORMAT), eval_share)


@lru_cache(maxsize=4)
def _load_once(file: RowFile, eval_share: float) -> Splits[Puzzle]:
    puzzles = load_rows(file, _parse_puzzle)
    return split_rows(puzzles, lambda each: split_of(each, eval_share) == "eval", eval_share=eval_share, file=file)


def _parse_puzzle(row: Row) -> Puzzle:
    fields = row.content if isinstance(row.content, dict) else {}
    numbers, target = fields.get("nums"), fields.get("target")
    if row.is_all_text and isinstance(numbers, str) and _NUMBERS.fullmatch(numbers.strip()):
        numbers = [int(number) for number in re.findall(r"[0-9]+", numbers)]
    if row.is_all_text and isinstance(target, str) and _NUMBER.fullmatch(target.strip()):
        target = int(target)
    if not isinstance(numbers, list) or not 2 <= len(numbers) <= MAX_NUMBERS or not all(map(_is_count, numbers)):
        raise _wrong(row)
    if not isinstance(target, int) or isinstance(target, bool):
        raise _wrong(row)
    return Puzzle(tuple(numbers), target)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(row: Row) -> TaskError:
    return row.error(reprlib.repr(row.content), _FORMAT.row, "Correct the row, or set env.path to another file.")

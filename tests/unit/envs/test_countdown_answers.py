"""Reading answers and finding them: against Python's own arithmetic, and against trying everything."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnwise.envs.countdown.puzzle import grade, solve

OPERATIONS = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
}


def slow_grade(answer: str, numbers: list[int]) -> tuple[bool, Fraction | None]:
    """Whether the answer is allowed and its value, by Python's own grammar."""
    used: list[int] = []

    def value_of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            left, right = value_of(node.left), value_of(node.right)
            return OPERATIONS[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value_of(node.operand)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        raise SyntaxError

    try:
        tree = ast.parse(answer.strip(), mode="eval").body
        digits = sorted(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        value = value_of(tree)
    except ZeroDivisionError:
        return digits == sorted(numbers), None
    except (SyntaxError, TypeError):
        return False, None
    return sorted(used) == sorted(numbers), value


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(["2", "3", "7", "+", "-", "*", "/", "(", ")"]), min_size=1, max_size=12))
@example(list("2-3-7"))
@example(list("2/3/7"))
@example(list("2-(3-7)"))
@example(list("-2*3--7"))
@example(list("-(2+3)*7"))
@example(list("2*-3/7"))
@example(list("7/(3-3)"))
def test_answers_mean_what_they_mean_in_arithmetic(tokens: list[str]) -> None:
    answer = " ".join(tokens)
    numbers = [int(token) for token in tokens if token.isdecimal()]
    is_allowed, value = slow_grade(answer, numbers)
    graded = grade(answer, numbers)
    # Python reads "/ /" and "* *" as two tokens, as is done here: with spaces there is no other operator.
    assert (graded is not None) == is_allowed
    if graded is not None:
        assert graded.value == value


@pytest.mark.parametrize(
    ("answer", "numbers"),
    [
        ("9**9**9", [9, 9, 9]),
        ("9//9", [9, 9]),
        ("1.5*2", [1, 5, 2]),
        ("1 5 * 2", [1, 5, 2]),
        ("15 * 2", [1, 5, 2]),
        ("1_5*2", [1, 5, 2]),
        ("1e5 + 2", [1, 5, 2]),
        ("1, 5, 2", [1, 5, 2]),
        ("05 + 2", [5, 2]),
        ("\uff15 + 2", [5, 2]),
        ("5(2)", [5, 2]),
        ("(5 + 2", [5, 2]),
        ("5 + 2)", [5, 2]),
        ("() 5 + 2", [5, 2]),
        ("5 +", [5]),
        ("5 2 +", [5, 2]),
        ("+5 + 2", [5, 2]),
        ("5 - 2 = 3", [5, 2]),
        ("__import__('os').system('5 - 2')", [5, 2]),
        ("lambda: 5 - 2", [5, 2]),
        ("(" * 5000 + "5 - 2" + ")" * 5000, [5, 2]),
        ("9" * 10_000, [9]),
        ("", [5, 2]),
        ("negate 5 2", [5, 2]),
    ],
)
def test_hostile_and_sloppy_answers_are_no_answers(answer: str, numbers: list[int]) -> None:
    assert grade(answer, numbers) is None


def test_deep_brackets_within_the_limit_are_read() -> None:
    graded = grade("(" * 190 + "5 - 2" + ")" * 190, [5, 2])
    assert graded is not None
    assert graded.value == 3


def all_values(values: tuple[Fraction, ...], operators: str) -> Iterator[Fraction]:
    """Everything the numbers can make: combine any two, and go on with one number less."""
    if len(values) == 1:
        yield values[0]
        return
    for first, second, *rest in permutations(values):
        results = {
            "+": first + second,
            "-": first - second,
            "*": first * second,
            "/": first / second if second else None,
        }
        for operator in operators:
            result = results[operator]
            if result is not None:
                yield from all_values((result, *rest), operators)


@pytest.mark.parametrize("operators", ["+-*/", "+-", "*/", "-"])
def test_the_solver_finds_a_solution_exactly_where_there_is_one(operators: str) -> None:
    rng = random.Random(operators)
    for count in (2, 3, 3, 3):
        numbers = tuple(rng.randint(0, 12) for _ in range(count))
        possible = set(all_values(tuple(map(Fraction, numbers)), operators))
        for target in range(-30, 150):
            assert (solve(numbers, target, operators) is not None) == (target in possible)


def test_the_solver_is_complete_for_four_numbers() -> None:
    for numbers in ((1, 5, 5, 5), (3, 3, 8, 8), (2, 7, 10, 13)):
        possible = set(all_values(tuple(map(Fraction, numbers)), "+-*/"))
        for target in range(101):
            assert (solve(numbers, target) is not None) == (target in possible)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(0, 60))
def test_solutions_are_right_by_pythons_arithmetic(numbers: list[int], target: int) -> None:
    solution = solve(numbers, target)
    if solution is not None:
        assert slow_grade(solution, numbers) == (True, target)
        graded = grade(solution, numbers)
        assert graded is not None
        assert graded.value == target


@pytest.mark.parametrize(
    ("numbers", "target", "solution"),
    [
        ((8, 3, 5), 16, "8 + 3 + 5"),
        ((8, 3, 2), 22, "2 * (8 + 3)"),
        ((3, 3, 8, 8), 24, "8 / (3 - 8 / 3)"),
    ],
)
def test_solutions_have_only_the_brackets_they_need(numbers: tuple[int, ...], target: int, solution: str) -> None:
    assert solve(numbers, target) == solution


def test_six_numbers_are_solved() -> None:
    numbers = [75, 50, 2, 3, 8, 7]
    assert slow_grade(solve(numbers, 812) or "", numbers) == (True, 812)

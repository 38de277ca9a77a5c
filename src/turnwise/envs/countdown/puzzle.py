"""Puzzles of Countdown: drawn at random, and the two splits that they and the rows of a file fall into.

In come settings, a seed and a split; out comes a puzzle, the same one in every process. A drawn puzzle is solvable by
construction: its target is what its numbers make. It refuses to know about answers and rewards.
"""

from __future__ import annotations

import random
from typing import NamedTuple
from zlib import crc32

from turnwise.envs.countdown.settings import CountdownParams
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

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

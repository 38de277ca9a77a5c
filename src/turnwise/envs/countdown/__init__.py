"""Reaching a number with others: settings, random puzzles or rows of a file, exact solutions, grading, and the game."""

from __future__ import annotations

from itertools import product
from typing import ClassVar

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.countdown.puzzle import CountdownParams, Graded, Puzzle, draw_puzzle, grade, load_puzzles, solve
from turnwise.errors import EnvError
from turnwise.infra.seeds import random_seed

__all__ = ["Countdown"]


SPLITS = ("train", "eval")


class Countdown(BaseEnv):
    """One puzzle and `attempts` answers. An episode's return is the worth of its best answer."""

    name = "countdown"
    rewards = "1 for the target, 0.1 for the right numbers"
    data = "built in, or a file of puzzles"
    Params: ClassVar[type[Settings]] = CountdownParams
    has_oracle = True
    state_fields = ("puzzle", "_attempts")

    params: CountdownParams
    puzzle: Puzzle

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        path = self.params.path
        self._rows = None if path is None else load_puzzles(path, self.params.eval_share)
        self._attempts: tuple[Graded, ...] = ()

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        seed = random_seed() if seed is None else seed
        self.puzzle = draw_puzzle(self.params, seed, split) if self._rows is None else self._rows.pick(split, seed)
        self._attempts = ()
        self._phase = "playing"
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        graded = grade(action, self.puzzle.numbers)
        if graded is None:
            return self.render(), 0.0, False, self._info(success=False, is_valid=False)
        is_right = graded.value == self.puzzle.target
        # What an earlier attempt has earned is not paid again, so failing first is never worth it.
        earned = self.params.numbers_reward if self._attempts else 0.0
        reward = (1.0 if is_right else self.params.numbers_reward) - earned
        self._attempts += (graded,)
        is_over = is_right or len(self._attempts) == self.params.attempts
        self._phase = "over" if is_over else "playing"
        return self.render(), reward, is_over, self._info(success=is_right, is_valid=True)

    def render(self) -> str:
        """The puzzle, and a line for every attempt."""
        numbers = " ".join(map(str, self.puzzle.numbers))
        lines = [f"{graded.text} makes {_describe(graded)}." for graded in self._attempts]
        return "\n".join([f"Numbers: {numbers} Target: {self.puzzle.target}", *lines])

    def admissible_actions(self) -> list[str]:
        """The numbers in their order with all choices of operators between them: some of all expressions."""
        first, *others = map(str, self.puzzle.numbers)
        choices = product(self.params.operators, repeat=len(others))
        return [
            " ".join([first, *(f"{operator} {number}" for operator, number in zip(chosen, others, strict=True))])
            for chosen in choices
        ]

    @property
    def example(self) -> str:
        return "(1 + 2) * 3"

    @property
    def instructions(self) -> str:
        text = (
            "Make the target out of the numbers. Use every number exactly once, with +, -, *, / and brackets, "
            "and answer with the expression alone."
        )
        return text if self.params.attempts == 1 else f"{text} You have {self.params.attempts} attempts."

    def oracle(self) -> str:
        self._require_playing()
        solution = solve(self.puzzle.numbers, self.puzzle.target, self.params.operators)
        if solution is None:
            raise EnvError(f"countdown: no expression over {list(self.puzzle.numbers)} makes {self.puzzle.target}.")
        return solution

    def num_tasks(self, split: str = "train") -> int | None:
        check_split(split, SPLITS, self.name)
        return None if self._rows is None else len(self._rows[split])

    def _info(self, *, success: bool, is_valid: bool) -> dict[str, object]:
        return {
            "success": success,
            "action_is_valid": is_valid,
            "action_is_effective": is_valid,
            "difficulty": f"{len(self.puzzle.numbers)} numbers",
        }


def _describe(graded: Graded) -> str:
    return "no number" if graded.value is None else str(graded.value)

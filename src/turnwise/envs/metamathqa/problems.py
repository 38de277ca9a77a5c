"""Problems: a question and its answer, and two splits that share no question.

In come problems from wherever; out come a training and an evaluation split. Rephrased and backward versions of one
question stay together, so that none of them gives another away. It refuses to know how files or stories look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.errors import TaskError
from turnwise.infra.seeds import fingerprint


@dataclass(frozen=True, slots=True)
class Problem:
    """Example: `question="Ada has 2 pears and finds 3 more. How many?"`, `answer="5"`, `origin` the same question."""

    question: str
    answer: str
    origin: str
    """What it was made from; problems with one origin are always in one split."""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    train: tuple[Problem, ...]
    eval: tuple[Problem, ...]


def is_held_out(origin: str, eval_share: float) -> bool:
    """Whether an origin belongs to evaluation: decided by its own hash, whatever stands beside it."""
    return fingerprint(origin) < eval_share * 2**64


def split_by_origin(problems: Sequence[Problem], eval_share: float, source: str) -> ProblemSet:
    """One source for both splits."""
    held_out = tuple(problem for problem in problems if is_held_out(problem.origin, eval_share))
    train = tuple(problem for problem in problems if not is_held_out(problem.origin, eval_share))
    if not train or not held_out:
        raise TaskError(
            f"env.path: with eval_share {eval_share:g}, {source} gives {len(train)} problems to training and "
            f"{len(held_out)} to evaluation; expected at least 1 each. Change eval_share or give env.eval_path."
        )
    return ProblemSet(train, held_out)


def hold_out(train: Sequence[Problem], held_out: Sequence[Problem], source: str) -> ProblemSet:
    """A source for each split; training problems whose origin is in evaluation are left away."""
    known = {problem.origin for problem in held_out}
    kept = tuple(problem for problem in train if problem.origin not in known)
    if not kept:
        raise TaskError(f"env.path: every problem of {source} is also in env.eval_path; nothing is left to train on.")
    return ProblemSet(kept, tuple(held_out))

"""Problems: a question and its answer, and two splits that share no question.

In come problems from wherever; out come a training and an evaluation split. Rephrased and backward versions of one
question stay together, so that none of them gives another away. It refuses to know how files or stories look.
"""

from __future__ import annotations

import random
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from turnwise.envs.metamathqa.grading import MAX_ANSWER_LENGTH, find_final_answer
from turnwise.envs.rows import RowFile, RowFormat, read_rows
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


QUESTION_FIELDS = ("query", "question", "problem")
ANSWER_FIELDS = ("answer", "response", "solution")
_ORIGIN_FIELD = "original_question"


@dataclass(frozen=True, slots=True)
class Fields:
    """Under which keys a row keeps question and answer; None: the first usual name that the row has."""

    question: str | None = None
    answer: str | None = None


def load_problems(path: str, fields: Fields, setting: str) -> tuple[Problem, ...]:
    """All problems of a file; the same file in the same state is read once per process. `setting` named the path."""
    expected = RowFormat(
        setting=setting,
        file="a JSON or JSONL file (.gz is fine) or a Parquet file of problems",
        row="an object with a question and an answer",
    )
    return _load_once(RowFile.find(path, expected), fields)


@lru_cache(maxsize=4)
def _load_once(file: RowFile, fields: Fields) -> tuple[Problem, ...]:
    problems = tuple(_as_problem(row.content, row.place, fields) for row in read_rows(file))
    if not problems:
        raise TaskError(
            f"{file.path} holds no problems; expected at least 1. Set {file.format.setting} to another file."
        )
    return problems


def _as_problem(row: object, place: str, fields: Fields) -> Problem:
    if not isinstance(row, dict):
        raise TaskError(f"{place}: found {reprlib.repr(row)}; expected an object with a question and an answer.")
    question = _text_of(row, fields.question, QUESTION_FIELDS, place, "question_field").strip()
    solution = _text_of(row, fields.answer, ANSWER_FIELDS, place, "answer_field").strip()
    if not question:
        raise TaskError(f"{place}: the question is blank. Take the row out, or set env.question_field to another key.")
    origin = row.get(_ORIGIN_FIELD)
    return Problem(question, _answer_of(solution, place), origin.strip() if isinstance(origin, str) else question)


def _text_of(row: dict[str, object], given: str | None, usual: tuple[str, ...], place: str, setting: str) -> str:
    key = given or next((name for name in usual if name in row), None)
    if key is None or key not in row:
        expected = f"'{given}'" if given else f"one of {', '.join(usual)}"
        raise TaskError(
            f"{place}: found the keys {', '.join(map(repr, list(row)[:8])) or 'of an empty object'}; expected "
            f"{expected}. Set env.{setting} to the key to use."
        )
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TaskError(f"{place}: found {reprlib.repr(value)} under '{key}'; expected a text. See env.{setting}.")
    return str(value)


def _answer_of(solution: str, place: str) -> str:
    """The marked final answer; a short line is one as it is."""
    marked = find_final_answer(solution)
    answer = solution if marked is None else marked
    if len(answer) > MAX_ANSWER_LENGTH or not any(character.isalnum() for character in answer):
        raise TaskError(
            f"{place}: found no final answer in {reprlib.repr(solution)}; expected 'The answer is: 5', '#### 5', "
            "'\\boxed{5}' or a short answer alone. Mend the row, or set env.answer_field to another key."
        )
    return answer


Operation = Literal["add", "subtract", "multiply", "divide"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo")
THINGS = ("apples", "books", "coins", "eggs", "keys", "pens", "shells", "stamps")
# Every number has a word behind it: with a full stop it would be another token, to be learnt again.
SENTENCES: dict[Operation, tuple[str, ...]] = {
    "add": ("{who} finds {n} more.", "{other} gives {who} {n} more.", "{who} buys {n} more."),
    "subtract": ("{who} loses {n} of them.", "{who} gives {n} to {other}.", "{who} sells {n} of them."),
    "multiply": ("{who} works until there are {n} times as many.", "Overnight they become {n} times as many."),
    "divide": (
        "{who} sorts them into {n} equal bags and keeps one bag.",
        "{who} shares them fairly among {n} people and takes one share.",
    ),
}


@dataclass(frozen=True, slots=True)
class Story:
    """The numbers alone. Example: start 5, `(("add", 3), ("divide", 4))`, end 2."""

    start: int
    events: tuple[tuple[Operation, int], ...]
    end: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that a forward problem tells, in order."""
        return self.start, *(number for _, number in self.events)


def draw_story(
    rng: random.Random, *, operations: Sequence[Operation], num_events: int, max_number: int
) -> Story | None:
    """No number, on the way or told, is below 1 or above `max_number`; None where chance led into a dead end."""
    start = amount = rng.randint(1, max_number)
    events: list[tuple[Operation, int]] = []
    for _ in range(num_events):
        fitting: dict[Operation, Sequence[int]] = {each: _fits(each, amount, max_number) for each in operations}
        choices: list[Operation] = [each for each, numbers in fitting.items() if numbers]
        if not choices:
            return None
        operation = rng.choice(choices)
        number = rng.choice(fitting[operation])
        amount = apply(operation, amount, number)
        events.append((operation, number))
    return Story(start, tuple(events), amount)


def apply(operation: Operation, amount: int, number: int) -> int:
    match operation:
        case "add":
            return amount + number
        case "subtract":
            return amount - number
        case "multiply":
            return amount * number
        case "divide":
            return amount // number


def _fits(operation: Operation, amount: int, max_number: int) -> Sequence[int]:
    """The numbers an event may have; times one and parts of one are no events."""
    match operation:
        case "add":
            return range(1, max_number - amount + 1)
        case "subtract":
            return range(1, amount)
        case "multiply":
            return range(2, max_number // amount + 1)
        case "divide":
            return [number for number in range(2, amount + 1) if amount % number == 0]


def tell(story: Story, rng: random.Random, *, is_backward: bool) -> tuple[str, str]:
    """Question and answer, with names, things and sentences drawn anew."""
    who, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    hidden = rng.randrange(len(story.numbers)) if is_backward else None
    start, *told = ["x" if place == hidden else str(number) for place, number in enumerate(story.numbers)]
    sentences = [f"{who} has {start} {things}."]
    for (operation, _), number in zip(story.events, told, strict=True):
        sentences.append(rng.choice(SENTENCES[operation]).format(who=who, other=other, n=number))
    if hidden is None:
        sentences.append(f"How many {things} does {who} have now?")
        return " ".join(sentences), str(story.end)
    sentences.append(f"Now {who} has {story.end} {things}. What was x?")
    return " ".join(sentences), str(story.numbers[hidden])

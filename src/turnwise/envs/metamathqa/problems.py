"""Math problems: read from files, or generated as word problems.

Rephrased and backward versions of one question are always in the same split, so that training does not reveal an
answer of evaluation.
"""

from __future__ import annotations

import random
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from turnwise.envs.metamathqa.grading import MAX_ANSWER_LENGTH, find_final_answer
from turnwise.envs.rows import Row, RowFile, RowFormat, Splits, describe_keys, hold_out_rows, load_rows, split_rows
from turnwise.infra.seeds import hash64


@dataclass(frozen=True, slots=True)
class Problem:
    """Example: `question="Ada has 2 pears and finds 3 more. How many?"`, `answer="5"`, `origin` the same question."""

    question: str
    answer: str
    origin: str
    """What it was made from; problems with one origin are always in one split."""


def is_held_out(origin: str, eval_share: float) -> bool:
    """Return whether an origin belongs to evaluation, by its hash alone."""
    return hash64(origin) < eval_share * 2**64


QUESTION_FIELDS = ("query", "question", "problem")
ANSWER_FIELDS = ("answer", "response", "solution")
_ORIGIN_FIELD = "original_question"


@dataclass(frozen=True, slots=True)
class ProblemParser:
    """Reads question and answer of a row. Keys that are None: the first usual name that the row has."""

    question: str | None = None
    answer: str | None = None

    def __call__(self, row: Row) -> Problem:
        if not isinstance(row.content, dict):
            raise row.error(reprlib.repr(row.content), "an object with a question and an answer")
        fields = row.content
        question = _text_of(fields, self.question, QUESTION_FIELDS, row, "question_field")
        solution = _text_of(fields, self.answer, ANSWER_FIELDS, row, "answer_field")
        if not question:
            fix = "Remove the row, or set env.question_field to another key."
            raise row.error("a blank question", "a text", fix)
        origin = fields.get(_ORIGIN_FIELD)
        return Problem(question, _answer_of(solution, row), origin.strip() if isinstance(origin, str) else question)


def problem_format(setting: str) -> RowFormat:
    """Format of the file that a setting names."""
    return RowFormat(
        setting=setting,
        items="problems",
        file="a JSON or JSONL file (.gz is fine) or a Parquet file of problems",
        row="an object with a question and an answer",
    )


def load_problems(path: str, eval_path: str | None, parser: ProblemParser, eval_share: float) -> Splits[Problem]:
    """Load the problems of one file, divided by a hash of their origin, or of a file for each split."""
    file = RowFile.find(path, problem_format("env.path"))
    eval_file = RowFile.find(eval_path, problem_format("env.eval_path")) if eval_path is not None else None
    return _load_once(file, eval_file, parser, eval_share)


@lru_cache(maxsize=4)
def _load_once(file: RowFile, eval_file: RowFile | None, parser: ProblemParser, eval_share: float) -> Splits[Problem]:
    problems = load_rows(file, parser)
    if eval_file is not None:
        held_out = load_rows(eval_file, parser)
        return hold_out_rows(problems, held_out, lambda each: each.origin, source=str(file.path), items="problems")
    return split_rows(problems, lambda each: is_held_out(each.origin, eval_share), eval_share=eval_share, file=file)


def _text_of(fields: dict[str, object], given: str | None, usual: tuple[str, ...], row: Row, setting: str) -> str:
    key = given or next((name for name in usual if name in fields), None)
    if key is None or key not in fields:
        expected = f"'{given}'" if given else f"one of {', '.join(usual)}"
        raise row.error(describe_keys(fields), expected, f"Set env.{setting} to the key to use.")
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise row.error(f"{reprlib.repr(value)} under '{key}'", "a text", f"Set env.{setting} to another key.")
    return str(value).strip()


def _answer_of(solution: str, row: Row) -> str:
    """Return the marked final answer; without a mark, a short text is the answer."""
    marked = find_final_answer(solution)
    answer = solution if marked is None else marked
    if len(answer) > MAX_ANSWER_LENGTH or not any(character.isalnum() for character in answer):
        raise row.error(
            f"no final answer in {reprlib.repr(solution)}",
            "'The answer is: 5', '#### 5', '\\boxed{5}' or a short answer alone",
            "Correct the row, or set env.answer_field to another key.",
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

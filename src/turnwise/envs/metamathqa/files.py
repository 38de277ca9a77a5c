r"""Files of problems: MetaMathQA, GSM8K and their like, as JSON, JSON lines, either of them in .gz, or Parquet.

In come a file and, where they are not the usual ones, the names of its fields; out come problems. A row that is no
problem is one error with file, line and the setting to change. It refuses to skip or to guess: a solution without a
marked final answer (`The answer is: 5`, `#### 5`, `\boxed{5}`) is an error.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from functools import lru_cache

from turnwise.envs.metamathqa.final_answer import MAX_ANSWER_LENGTH, find_final_answer
from turnwise.envs.metamathqa.problems import Problem
from turnwise.envs.row_files import RowFile, RowFormat, read_rows
from turnwise.errors import TaskError

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

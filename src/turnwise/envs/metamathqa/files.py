r"""Files of problems: MetaMathQA, GSM8K and their like, as JSON, JSON lines, either of them in .gz, or Parquet.

In come a file and, where they are not the usual ones, the names of its fields; out come problems. A row that is no
problem is one error with file, line and the setting to change. It refuses to skip or to guess: a solution without a
marked final answer (`The answer is: 5`, `#### 5`, `\boxed{5}`) is an error.
"""

from __future__ import annotations

import gzip
import json
import reprlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turnwise.config.packages import require_package
from turnwise.envs.metamathqa.final_answer import MAX_ANSWER_LENGTH, find_final_answer
from turnwise.envs.metamathqa.problems import Problem
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
    file = Path(path).expanduser().absolute()
    try:
        state = file.stat()
        return _load_once(file, state.st_mtime_ns, state.st_size, fields)
    except OSError as error:
        raise TaskError(
            f"{setting}: '{path}' cannot be read: {error.strerror or error}. Give a JSON, JSONL or Parquet file."
        ) from error


@lru_cache(maxsize=4)
def _load_once(file: Path, _mtime_ns: int, _size: int, fields: Fields) -> tuple[Problem, ...]:
    problems = tuple(_as_problem(row, f"{file}, {place}", fields) for place, row in _rows(file))
    if not problems:
        raise TaskError(f"{file} holds no problems; expected at least 1. Set env.path to another file.")
    return problems


def _rows(file: Path) -> Iterator[tuple[str, object]]:
    """Every row with the words for where it stands."""
    if file.suffix.lower() == ".parquet":
        yield from _parquet_rows(file)
        return
    text = _read_text(file)
    if text.lstrip().startswith("["):
        yield from _list_rows(text, file)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", _parse_line(line, f"{file}, line {number}")


def _read_text(file: Path) -> str:
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TaskError(f"{file}: the gzip data is damaged ({error}). Fetch or pack the file again.") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(
            f"{file}, line {line}: found the byte 0x{data[error.start]:02x}, which is not UTF-8; expected JSON, JSON "
            "lines, either of them in .gz, or a file named .parquet."
        ) from error


def _list_rows(text: str, file: Path) -> Iterator[tuple[str, object]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{file}, line {error.lineno}: the JSON list is not valid here: {error.msg}.") from error
    except RecursionError as error:
        raise TaskError(f"{file}, line 1: found lists inside lists; expected a list of objects.") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _parse_line(line: str, place: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"{place}: found {reprlib.repr(line.strip())}, which is not valid JSON; expected one object per line."
        ) from error


def _parquet_rows(file: Path) -> Iterator[tuple[str, object]]:
    parquet = require_package("pyarrow.parquet", extra="math", asked_by=f"the Parquet file {file}")
    try:
        rows = parquet.read_table(file).to_pylist()
    except ValueError as error:  # the base of pyarrow's own errors about content
        raise TaskError(f"{file} is not a readable Parquet file: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


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

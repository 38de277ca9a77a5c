"""Files of puzzles: a JSON list, JSON lines or Parquet, with the fields `nums` and `target` of the public data set.

In comes a path; out come the puzzles of each split, in the order of the file. A row that is no puzzle is one error that
names the file and the row. It refuses to guess: nothing is skipped but blank lines.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.envs.countdown.puzzle import Puzzle, split_of
from turnwise.envs.countdown.settings import MAX_NUMBERS
from turnwise.errors import TaskError

_EXPECTED = f"expected an object with 'nums', a list of 2 to {MAX_NUMBERS} whole numbers from 0, and 'target', one more"


class _Row(BaseModel):
    """A row as the public data set has it; further fields do no harm."""

    model_config = ConfigDict(strict=True)

    nums: list[Annotated[int, Field(ge=0)]] = Field(min_length=2, max_length=MAX_NUMBERS)
    target: int


def load_puzzles(path: str, eval_share: float) -> MappingProxyType[str, tuple[Puzzle, ...]]:
    """The puzzles by split; the same file in the same state is read once per process."""
    file = Path(path).expanduser().absolute()
    try:
        state = file.stat()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    return _load_once(file, state.st_mtime_ns, state.st_size, eval_share)


@lru_cache(maxsize=4)
def _load_once(file: Path, _mtime_ns: int, _size: int, eval_share: float) -> MappingProxyType[str, tuple[Puzzle, ...]]:
    splits: dict[str, list[Puzzle]] = {"train": [], "eval": []}
    for place, row in _read_rows(file):
        puzzle = _as_puzzle(row, f"{file}, {place}")
        splits[split_of(puzzle, eval_share)].append(puzzle)
    for split, puzzles in splits.items():
        if not puzzles:
            raise TaskError(
                f"env.path: '{file}' has no puzzle for the split '{split}' with eval_share={eval_share:g}. "
                "Give a file with more puzzles, or change env.eval_share."
            )
    return MappingProxyType({split: tuple(puzzles) for split, puzzles in splits.items()})


def _read_rows(file: Path) -> Iterator[tuple[str, object]]:
    if file.suffix.lower() == ".parquet":
        return ((f"row {number}", row) for number, row in enumerate(_read_parquet(file), start=1))
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(file), str(error)) from error
    if text.lstrip().startswith("["):
        return ((f"row {number}", row) for number, row in enumerate(_parse(text, file, "row 1"), start=1))
    return _read_lines(text, file)


def _read_lines(text: str, file: Path) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"line {number}"
            yield place, _parse(line, file, place)


def _parse(text: str, file: Path, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"{file}, {place}: found {reprlib.repr(text.strip())}, which is not valid JSON ({error}); {_EXPECTED}. "
            "Mend the file, or set env.path to another."
        ) from error


def _read_parquet(file: Path) -> Sequence[object]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise TaskError(
            f"env.path: '{file}' is a Parquet file, and reading it needs pyarrow, which is not installed. "
            "Install it (pip install pyarrow), or give the rows as JSON or JSON lines."
        ) from error
    try:
        return parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors extend these two
        raise _unreadable(str(file), str(error)) from error


def _as_puzzle(row: object, place: str) -> Puzzle:
    try:
        checked = _Row.model_validate(row)
    except ValidationError as error:
        raise TaskError(
            f"{place}: found {reprlib.repr(row)}; {_EXPECTED}. Mend the row, or set env.path to another file."
        ) from error
    return Puzzle(tuple(checked.nums), checked.target)


def _unreadable(path: str, reason: str) -> TaskError:
    return TaskError(
        f"env.path: '{path}' cannot be read: {reason.rstrip('.')}. Give a JSON, JSONL or Parquet file of puzzles."
    )

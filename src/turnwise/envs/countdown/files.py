"""Files of puzzles: a JSON list, JSON lines, CSV or Parquet, with the fields `nums` and `target` of the public data.

In comes a path; out come the puzzles of each split, in the order of the file. A row that is no puzzle is one error that
names the file and the row. It refuses to guess: nothing is skipped but blank lines.
"""

from __future__ import annotations

import re
import reprlib
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.envs.countdown.puzzle import Puzzle, split_of
from turnwise.envs.countdown.settings import MAX_NUMBERS
from turnwise.envs.row_files import Row, RowFile, RowFormat, read_rows
from turnwise.errors import TaskError

_FORMAT = RowFormat(
    setting="env.path",
    file="a JSON, JSONL, CSV or Parquet file of puzzles",
    row=f"an object with 'nums', a list of 2 to {MAX_NUMBERS} whole numbers from 0, and 'target', one more",
)

_NUMBERS = re.compile(r"\[?\s*[0-9]{1,18}([\s,;]+[0-9]{1,18})*\s*\]?")
"""How a list of numbers stands in one value of a CSV file: `[1, 2]`, `1 2` or `1;2`."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class _Row(BaseModel):
    """A row as the public data set has it; further fields do no harm."""

    model_config = ConfigDict(strict=True)

    nums: list[Annotated[int, Field(ge=0)]] = Field(min_length=2, max_length=MAX_NUMBERS)
    target: int


def load_puzzles(path: str, eval_share: float) -> MappingProxyType[str, tuple[Puzzle, ...]]:
    """The puzzles by split; the same file in the same state is read once per process."""
    return _load_once(RowFile.find(path, _FORMAT), eval_share)


@lru_cache(maxsize=4)
def _load_once(file: RowFile, eval_share: float) -> MappingProxyType[str, tuple[Puzzle, ...]]:
    splits: dict[str, list[Puzzle]] = {"train": [], "eval": []}
    for row in read_rows(file):
        puzzle = _as_puzzle(row)
        splits[split_of(puzzle, eval_share)].append(puzzle)
    for split, puzzles in splits.items():
        if not puzzles:
            raise TaskError(
                f"env.path: '{file.path}' has no puzzle for the split '{split}' with eval_share={eval_share:g}. "
                "Give a file with more puzzles, or change env.eval_share."
            )
    return MappingProxyType({split: tuple(puzzles) for split, puzzles in splits.items()})


def _as_puzzle(row: Row) -> Puzzle:
    try:
        checked = _Row.model_validate(_with_numbers(row.content) if row.is_all_text else row.content)
    except ValidationError as error:
        raise TaskError(
            f"{row.place}: found {reprlib.repr(row.content)}; expected {_FORMAT.row}. "
            "Mend the row, or set env.path to another file."
        ) from error
    return Puzzle(tuple(checked.nums), checked.target)


def _with_numbers(content: object) -> object:
    """A row of texts with the numbers that stand in them; what is none stays, and is refused."""
    if not isinstance(content, dict):
        return content
    nums, target = content.get("nums"), content.get("target")
    read: dict[str, object] = {}
    if isinstance(nums, str) and _NUMBERS.fullmatch(nums.strip()):
        read["nums"] = [int(number) for number in re.findall(r"[0-9]+", nums)]
    if isinstance(target, str) and _NUMBER.fullmatch(target.strip()):
        read["target"] = int(target)
    return {**content, **read}

"""Game files by path: one, a folder of them, or a list that says where they are and to which split they belong.

In come paths; out come households, read once per process and state of a file. A path that leads nowhere and a row that
makes no sense are one error with the place and the setting to change. It refuses to know what is inside a game file.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from turnwise.envs.alfworld.household import Household
from turnwise.envs.alfworld.pddl import read_household
from turnwise.errors import TaskError
from turnwise.infra.parsing import parse_json

_FOLDERS = {"train": "train", "valid_train": "train", "valid_seen": "seen", "valid_unseen": "unseen"}
"""The original's names of splits, which are folders in the path of each game."""
_SPLITS = ("train", "seen", "unseen")


class _Row(NamedTuple):
    path: Path
    split: str | None


def find_data(path: str | Path, folder: Path | None = None) -> Path:
    """Where a path leads, variables filled in; a relative one that is not there is looked for under $ALFWORLD_DATA."""
    given = Path(os.path.expandvars(Path(path).expanduser()))
    here, data = (folder or Path()) / given, os.environ.get("ALFWORLD_DATA")
    if data and not given.is_absolute() and not here.exists() and (there := Path(data).expanduser() / given).exists():
        here = there
    return here.absolute()


def load_game(path: str | Path) -> Household:
    """The household of a game file; the same file in the same state is read once per process."""
    file = find_data(path)
    try:
        return _load_once(file, file.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TaskError(
            f"env.game_file: '{path}' cannot be read: {reason}. Give a game.tw-pddl, as alfworld-download brings them."
        ) from error


@lru_cache(maxsize=512)
def _load_once(file: Path, _mtime_ns: int) -> Household:
    return read_household(file.read_text(encoding="utf-8"), str(file))


def list_games(source: str, eval_share: float) -> Mapping[str, tuple[Path, ...]]:
    """The game files of each split, in their order; a game is in one split only."""
    path = find_data(source)
    rows = _rows_of_folder(path) if path.is_dir() else _rows_of_list(path)
    splits: dict[str, dict[Path, None]] = {split: {} for split in _SPLITS}
    for row in rows:
        splits[row.split or _split_of(row.path, eval_share)][row.path] = None
    return {split: tuple(paths) for split, paths in splits.items()}


def _rows_of_folder(folder: Path) -> list[_Row]:
    rows = [_Row(path, None) for path in sorted(folder.rglob("*.tw-pddl"))]
    if not rows:
        raise TaskError(f"env.games: there is no *.tw-pddl in the folder '{folder}'. Give a folder with game files.")
    return rows


def _rows_of_list(path: Path) -> list[_Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TaskError(
            f"env.games: '{path}' cannot be read: {reason}. Give a folder, or a list with one game file per line."
        ) from error
    rows = [_read_row(line, path.parent, f"{path}, line {number}") for number, line in _lines(text)]
    if not rows:
        raise TaskError(f"env.games: '{path}' lists no game. Give one game file per line.")
    return rows


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _read_row(line: str, folder: Path, place: str) -> _Row:
    """A path, or an object with one; paths are relative to the list."""
    if not line.startswith(("{", '"')):
        return _Row(find_data(line, folder), None)
    try:
        row = parse_json(line)
    except ValueError as error:
        raise TaskError(
            f"{place}: found {reprlib.repr(line)}, which is not valid JSON; expected a path, or an object with "
            "'game_file'. Mend the line, or set env.games to another list."
        ) from error
    fields = {"game_file": row} if isinstance(row, str) else row
    game_file, split = fields.get("game_file"), fields.get("split")
    if not isinstance(game_file, str) or not game_file.strip():
        raise TaskError(
            f"{place}: found an object with {sorted(fields) or 'no keys'}; expected the path of a game under "
            "'game_file'. Mend the line, or set env.games to another list."
        )
    if split is not None and split not in _SPLITS:
        raise TaskError(
            f"{place}: found the split {reprlib.repr(split)}; expected one of {', '.join(_SPLITS)}, or none."
        )
    return _Row(find_data(game_file, folder), split)


def _split_of(path: Path, eval_share: float) -> str:
    """By the original's folder; elsewhere by the name of the path, so that other rows do not matter."""
    for part in reversed(path.parts):
        if part in _FOLDERS:
            return _FOLDERS[part]
    return "unseen" if crc32(str(path).encode("utf-8", "surrogatepass")) / 2**32 < eval_share else "train"

"""The episodes on disk come in, file by file; those that fit a question go out, page by page.

The index is a table in memory: nothing is written into a run. It is filled newest step first, so that what a person
sees first is there first, and brought up to date file by file. It keeps what is asked for often and where each episode
lies; an episode itself is read from its file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from turnwise.errors import RunError
from turnwise.report.metrics import cause_of
from turnwise.view.episodes import EpisodeFile, list_episode_files, read_episode

_TABLE = """
create table files (path text primary key, size integer, mtime_ns integer);
create table episodes (
    file text, start integer, length integer, step integer, is_eval integer, id text, tag text, split text, seed text,
    stop text, is_success integer, earned real, turns integer, is_valid integer, failure text
);
create index by_name on episodes (step, id);
create index newest on episodes (step desc, is_eval);
create index by_file on episodes (file);
"""
_SORTS = {"step": "step", "return": "earned", "turns": "turns", "id": "id"}
_MAX_PAGE = 500
_MAX_BITS = 63
"""Of a whole number in SQLite, its sign aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """What is asked for; None asks for all."""

    step_from: int | None = None
    step_to: int | None = None
    tag: str | None = None
    stop: str | None = None
    success: int | None = None
    """1 or 0; -1: nobody said."""
    is_eval: int | None = None
    return_from: float | None = None
    return_to: float | None = None
    turns_from: int | None = None
    turns_to: int | None = None
    failed: int | None = None
    invalid: int | None = None
    """1: only episodes with a reply that was not understood."""
    id: str | None = None
    """A part of the name."""
    text: str | None = None
    """Words in what the model said or the world answered, in any case."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> EpisodeFilter:
        """From words; a RunError for what is none."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            word = given.get(field.name, "").strip()
            if not word:
                continue
            kind = float if "float" in str(field.type) else parse_int if "int" in str(field.type) else str
            try:
                values[field.name] = kind(word)
            except ValueError as error:
                raise RunError(f"{field.name}: '{word}' given; expected a number.") from error
        return cls(**values)

    def where(self) -> tuple[str, list[Any]]:
        """The same as SQL over the table, free text aside."""
        bounds = [
            ("step >= ?", self.step_from),
            ("step <= ?", self.step_to),
            ("tag = ?", self.tag),
            ("stop = ?", self.stop),
            ("ifnull(is_success, -1) = ?", self.success),
            ("is_eval = ?", self.is_eval),
            ("earned >= ?", self.return_from),
            ("earned <= ?", self.return_to),
            ("turns >= ?", self.turns_from),
            ("turns <= ?", self.turns_to),
            ("(failure != '') = ?", self.failed),
            ("(not is_valid) = ?", self.invalid),
            ("instr(id, ?) > 0", self.id),
        ]
        asked = [(sql, value) for sql, value in bounds if value is not None]
        return " and ".join(sql for sql, _ in asked) or "1", [value for _, value in asked]


def parse_int(word: str) -> int:
    """As far as the table can count; a ValueError for what is none."""
    number = int(word)
    if number.bit_length() > _MAX_BITS:
        raise ValueError(f"'{word}' has more than {_MAX_BITS} bits")
    return number


class EpisodeIndex:
    """The episodes of one run. For any number of threads."""

    def __init__(self, trajectories: Path) -> None:
        self._trajectories = trajectories
        self._table = sqlite3.connect(":memory:", check_same_thread=False)
        self._table.executescript(_TABLE)
        self._lock = Lock()
        self._update_lock = Lock()
        self._left = 0
        self._facets: dict[str, Any] | None = None

    @property
    def num_files_left(self) -> int:
        """Files that are known and not yet looked into."""
        return self._left

    def update(self) -> bool:
        """Look into new and changed files, newest step first, and forget what is gone; says whether there were any."""
        with self._update_lock:
            files = {str(file.path): file for file in list_episode_files(self._trajectories)}
            with self._lock:
                known = {path: (size, when) for path, size, when in self._table.execute("select * from files")}
            signs = {path: _sign(file.path) for path, file in files.items()}
            stale = [path for path, sign in known.items() if signs.get(path) != sign]
            new = sorted(
                (files[path] for path, sign in signs.items() if sign and known.get(path) != sign), reverse=True
            )
            self._left = len(new)
            self._forget(stale)
            for file in new:
                self._add(file, signs[str(file.path)])
                self._left -= 1
                # Whoever asks meanwhile comes first.
                time.sleep(0)
            return bool(stale or new)

    def find(self, asked: EpisodeFilter, order: Order) -> dict[str, Any]:
        """A page of rows, and how many there are; with free text, how many as far as was looked."""
        where, values = asked.where()
        by = f"{_SORTS[order.sort]} {'desc' if order.is_descending else 'asc'}, is_eval, rowid"
        rows = f"select rowid, * from episodes where {where} order by {by}"
        with self._lock:
            total = self._table.execute(f"select count(*) from episodes where {where}", values).fetchone()[0]
            if asked.text is None:
                found = self._rows(f"{rows} limit ? offset ?", [*values, order.limit, order.offset])
                return {"total": total, "is_total_known": True, "episodes": [_shown(row) for row in found]}
        # Behind the last row there is nothing to look for.
        start = min(order.offset, total)
        hits = list(islice(self._that_say(asked.text, rows, values), start + order.limit + 1))
        page = hits[start : start + order.limit]
        is_known = len(hits) <= start + order.limit
        return {"total": len(hits), "is_total_known": is_known, "episodes": [_shown(row) for row in page]}

    def _that_say(self, text: str, sql: str, values: list[Any]) -> Iterator[sqlite3.Row]:
        """Rows whose episode has the text in it; read from disk one after the other, for as long as somebody asks."""
        lines = _Lines()
        with self._lock:
            cursor = self._table.cursor()
            cursor.row_factory = sqlite3.Row
            cursor.execute(sql, values)
        while True:
            with self._lock:
                rows = cursor.fetchmany(_MAX_PAGE)
            if not rows:
                return
            yield from (row for row in rows if _says(lines.read(row), text))

    def facets(self) -> dict[str, Any]:
        """What can be chosen from: tags, stop reasons and steps, with their counts."""
        with self._lock:
            if self._facets is not None:
                return self._facets
            count = "select {0}, count(*) from episodes group by {0} order by 2 desc"
            tags = dict(self._table.execute(count.format("tag")).fetchall())
            stops = dict(self._table.execute(count.format("stop")).fetchall())
            total, first, last = self._table.execute("select count(*), min(step), max(step) from episodes").fetchone()
            self._facets = {"tags": tags, "stops": stops, "total": total, "first_step": first, "last_step": last}
            return self._facets

    def failures(self) -> dict[str, int]:
        """How many of the kept episodes failed, by cause."""
        with self._lock:
            rows = self._table.execute("select failure from episodes where failure != ''").fetchall()
        causes = [cause_of(failure) for (failure,) in rows]
        return {cause: causes.count(cause) for cause in sorted(set(causes))}

    def read(self, step: int, name: str, *, is_eval: bool) -> dict[str, Any] | None:
        """An episode from its file; also one that is not in the index yet. None where its text was not kept."""
        with self._lock:
            rows = self._rows(
                "select rowid, * from episodes where step = ? and id = ? and is_eval = ?", [step, name, int(is_eval)]
            )
        if rows and (record := read_episode(_line(rows[0]))) is not None and record.get("id") == name:
            return record
        for file in list_episode_files(self._trajectories) if not rows else ():
            if file.step == step and file.is_eval == is_eval:
                found = (read_episode(line) for _, line in file.lines() if name.encode() in line)
                return next((record for record in found if record is not None and record.get("id") == name), None)
        return None

    def _rows(self, sql: str, values: list[Any]) -> list[sqlite3.Row]:
        cursor = self._table.cursor()
        cursor.row_factory = sqlite3.Row
        return cursor.execute(sql, values).fetchall()

    def _forget(self, paths: list[str]) -> None:
        with self._lock:
            self._facets = None
            for path in paths:
                self._table.execute("delete from files where path = ?", (path,))
                self._table.execute("delete from episodes where file = ?", (path,))

    def _add(self, file: EpisodeFile, sign: tuple[int, int] | None) -> None:
        rows = list(_describe(file))
        with self._lock:
            self._facets = None
            self._table.executemany(f"insert into episodes values ({', '.join('?' * 15)})", rows)
            self._table.execute("insert into files values (?, ?, ?)", (str(file.path), *(sign or (0, 0))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which page, in which order."""

    sort: str = "step"
    is_descending: bool = True
    offset: int = 0
    limit: int = 50

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Order:
        sort = given.get("sort") or "step"
        if sort not in _SORTS:
            raise RunError(f"sort: '{sort}' given; expected one of {', '.join(_SORTS)}.")
        try:
            offset, limit = parse_int(given.get("offset") or "0"), parse_int(given.get("limit") or "50")
        except ValueError as error:
            raise RunError(f"offset and limit: expected numbers ({error}).") from error
        is_descending = given.get("order") != "ascending"
        return cls(sort=sort, is_descending=is_descending, offset=max(0, offset), limit=min(max(1, limit), _MAX_PAGE))


def _describe(file: EpisodeFile) -> Iterator[tuple[Any, ...]]:
    for start, line in file.lines():
        record = read_episode(line)
        if record is None:
            continue
        task, turns = record.get("task") or {}, record["turns"]
        yield (
            str(file.path),
            start,
            len(line),
            file.step,
            int(file.is_eval),
            str(record.get("id")),
            str(task.get("tag")),
            str(task.get("split")),
            str(task.get("seed")),
            str(record.get("stop_reason")),
            None if record.get("is_success") is None else int(bool(record["is_success"])),
            sum(float(turn.get("reward") or 0.0) for turn in turns),
            len(turns),
            int(all(turn.get("is_valid", True) for turn in turns)),
            str(record.get("failure") or ""),
        )


def _shown(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "step": row["step"],
        "is_eval": bool(row["is_eval"]),
        "tag": row["tag"],
        "seed": row["seed"],
        "stop_reason": row["stop"],
        "is_success": None if row["is_success"] is None else bool(row["is_success"]),
        "return": row["earned"],
        "turns": row["turns"],
        "is_valid": bool(row["is_valid"]),
        "failure": row["failure"],
    }


def _line(row: sqlite3.Row) -> bytes:
    try:
        with open(row["file"], "rb") as file:
            file.seek(row["start"])
            return file.read(row["length"])
    except OSError:
        return b""


class _Lines:
    """Lines of one file after the other; a file is read once."""

    def __init__(self) -> None:
        self._path, self._data = "", b""

    def read(self, row: sqlite3.Row) -> bytes:
        if row["file"] != self._path:
            path = Path(row["file"])
            self._path, self._data = row["file"], path.read_bytes() if path.is_file() else b""
        return self._data[row["start"] : row["start"] + row["length"]]


def _says(line: bytes, text: str) -> bool:
    if text.isalnum() and text.isascii() and text.lower().encode() not in line.lower():
        # Such words stand in JSON as they are: most lines need not be parsed.
        return False
    record = read_episode(line) or {}
    texts = [record.get("final_observation"), record.get("failure")]
    texts += [turn.get(key) for turn in record.get("turns", ()) for key in ("observation", "response_text")]
    return any(text.lower() in found.lower() for found in texts if isinstance(found, str))


def _sign(path: Path) -> tuple[int, int] | None:
    """Changes whenever a file does; None where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns

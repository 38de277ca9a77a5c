"""A run directory comes in; what it says goes out, read as little and as seldom as possible.

Everything that a person looks at comes from here: while the run goes on, after it, and after a crash. What is missing
or damaged is left out instead of hiding the rest. Settings are read as plain data, so that a run of plug-ins that are
not installed here can be looked at. It refuses to change anything in a run.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from turnwise.errors import RunError
from turnwise.infra.parsing import parse_finite_json, parse_yaml
from turnwise.report.run_dir import RunDirectory, Summary
from turnwise.report.token_log import TokenLog
from turnwise.report.token_log_reader import StepTokens

_QUIET_S = 120.0
"""A run that has written nothing for this long, and for many of its own steps, is no longer there."""
_QUIET_STEPS = 8
_SAME_MOMENT_S = 5.0
"""Files of one ending, and copies of them, are written within this time."""
_LOCKS = Path("/proc/locks")


class RunState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    COLLAPSED = "collapsed"
    """The watch has ended it."""
    KILLED = "killed"
    """It has not ended, and nobody is at work in it."""


def find_state(
    directory: RunDirectory, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None
) -> RunState:
    """`rows` are its metrics, `summary` what it wrote at its end."""
    workers = find_workers(directory.path)
    if any(worker.is_there for worker in workers):
        return RunState.RUNNING
    if summary is not None and _written_s(directory.metrics) <= _written_s(directory.summary) + _SAME_MOMENT_S:
        return RunState.COLLAPSED if summary.get("stopped") else RunState.ENDED
    if workers and all(worker.is_there is False for worker in workers):
        return RunState.KILLED
    return RunState.RUNNING if silent_s(directory) < _patience_s(rows) else RunState.KILLED


def silent_s(directory: RunDirectory) -> float:
    """How long nothing has been written."""
    places = (
        directory.metrics,
        directory.config,
        directory.learning_record,
        directory.explorer_metrics,
        directory.trajectories,
        directory.checkpoints,
        directory.unfinished,
        directory.path / "waiting.json",
    )
    return max(0.0, time.time() - max(map(_written_s, places)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that has taken a role in a run, as its lock tells it."""

    role: str
    is_there: bool | None
    """Whether it holds its lock; None where that cannot be known from here."""
    pid: int | None = None
    host: str | None = None
    since: str | None = None


def find_workers(folder: Path) -> list[Worker]:
    """By the locks in a run directory, which are looked up in the system's table and never touched."""
    held = _held_places()
    workers = []
    for lock in sorted(found for pattern in ("*.lock", "*/*.lock") for found in folder.glob(pattern)):
        told = _read_lock(lock)
        is_here = told.get("host") in (None, socket.gethostname())
        is_there = None if held is None or not is_here else _place(lock) in held
        workers.append(Worker(role=lock.stem, is_there=is_there, **told))
    return workers


def _held_places() -> set[str] | None:
    """Files that some process has locked for itself; None where the system has no such table."""
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    # `1: FLOCK  ADVISORY  WRITE 708 08:01:2506 0 EOF`
    return {words[5] for line in lines if len(words := line.split()) > 5 and words[3] == "WRITE"}


def _read_lock(lock: Path) -> dict[str, Any]:
    try:
        told = parse_finite_json(lock.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: told.get(key) for key in ("pid", "host", "since")} if isinstance(told, dict) else {}


def _place(file: Path) -> str:
    found = file.stat()
    return f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"


def _patience_s(rows: Sequence[Mapping[str, Any]]) -> float:
    times = [row["time_s"] for row in rows[-50:] if isinstance(row.get("time_s"), int | float)]
    taken = [later - earlier for earlier, later in pairwise(times)]
    return max(_QUIET_S, _QUIET_STEPS * median(taken)) if taken else _QUIET_S


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class JsonlTail:
    """One file, which need not be there yet; for any number of threads."""

    def __init__(self, path: Path, clean: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda row: row) -> None:
        """`clean` says what is left of a row; None leaves it out."""
        self._path = path
        self._clean = clean
        self._lock = Lock()
        self._identity: tuple[int, int] | None = None
        self._end = 0
        self._rows: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All rows until now."""
        with self._lock:
            self._catch_up()
            return list(self._rows)

    def _catch_up(self) -> None:
        try:
            found = self._path.stat()
        except OSError:
            self._identity, self._end, self._rows = None, 0, []
            return
        identity = (found.st_dev, found.st_ino)
        if identity != self._identity or found.st_size < self._end:
            self._identity, self._end, self._rows = identity, 0, []
        if found.st_size > self._end:
            self._read_on()

    def _read_on(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._end)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        self._rows += [row for line in whole.split(b"\n") if line and (row := self._parse(line)) is not None]

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            row = parse_finite_json(line)
        except ValueError:
            return None
        return self._clean(row) if isinstance(row, dict) else None


_SUMMARY_KINDS = {"str": str, "int": int, "float": (int, float), "Mapping": dict, "Sequence": list}
"""What JSON has for each type of a summary."""
_MAX_NUMBER = 1e300
_KEPT_STEPS = 6
"""Updates whose tokens stay in memory, so that one episode after the other opens at once."""


class RunFiles:
    """One run, as its files tell of it now. For any number of threads."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory.open(path)
        self._metrics = JsonlTail(self.directory.metrics, clean_metrics)
        self._explorer = JsonlTail(self.directory.explorer_metrics, clean_metrics)
        self._findings = JsonlTail(self.directory.findings)
        self._resumes = JsonlTail(self.directory.resumes)
        self._steps: dict[int, StepTokens] = {}
        self._arrays: dict[int, dict[str, NDArray[Any]]] = {}
        self._record_size = 0
        self._lock = Lock()

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """As they were written at the beginning."""
        try:
            found = parse_yaml(self.directory.config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return _plain(found) if isinstance(found, dict) else {}

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.directory.manifest) or {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per step."""
        return self._metrics.read()

    @property
    def explorer_metrics(self) -> list[dict[str, Any]]:
        return self._explorer.read()

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What the watch has told."""
        return self._findings.read()

    @property
    def resumes(self) -> list[dict[str, Any]]:
        """When the run went on after a stop, and from which step."""
        return self._resumes.read()

    @property
    def summary(self) -> dict[str, Any] | None:
        """None before the end."""
        found = read_json(self.directory.summary)
        return None if found is None else clean_summary(found)

    @property
    def state(self) -> RunState:
        return find_state(self.directory, self.metrics, self.summary)

    @property
    def waits(self) -> list[dict[str, Any]]:
        """Who waits for whom now: `who`, `for`, `since`, `deadline_s`, and how long already."""
        found = read_json(self.path / "waiting.json", kind=list) or []
        now_s = time.time()
        waits = [dict(wait) for wait in found if isinstance(wait, dict)]
        for wait in waits:
            if isinstance(since := wait.get("since"), int | float):
                wait["waited_s"] = max(0.0, now_s - since)
        return waits

    @property
    def recorded_steps(self) -> list[int]:
        """The steps whose tokens are on record."""
        try:
            return TokenLog(self.directory.learning_record).steps()
        except RunError:
            return []

    def tokens(self, step: int) -> StepTokens:
        """What was learnt from each token of a step; a RunError where there is no such record."""
        with self._lock:
            self._forget_what_was_cut()
            if step not in self._steps:
                self._steps[step] = TokenLog(self.directory.learning_record).read(step)
            while len(self._steps) > _KEPT_STEPS:
                oldest = next(iter(self._steps))
                self._steps.pop(oldest)
                self._arrays.pop(oldest, None)
            return self._steps[step]

    def arrays(self, step: int) -> dict[str, NDArray[Any]]:
        """The same as flat arrays by name."""
        tokens = self.tokens(step)
        with self._lock:
            if step not in self._arrays:
                self._arrays[step] = tokens.to_arrays()
            return self._arrays[step]

    def _forget_what_was_cut(self) -> None:
        """A resumed run cuts the record and makes its last steps again."""
        record = self.directory.learning_record
        size = record.stat().st_size if record.exists() else 0
        if size < self._record_size:
            self._steps.clear()
            self._arrays.clear()
        self._record_size = size

    def worlds(self) -> dict[str, dict[str, Any]]:
        """The settings of each environment, by the tag of its episodes."""
        own = self.settings.get("env")
        worlds = {str(own.get("type")): own} if isinstance(own, dict) else {}
        mixed = self.settings.get("mix")
        for tag, part in mixed.items() if isinstance(mixed, dict) else ():
            if isinstance(part, dict) and isinstance(part.get("env"), dict):
                worlds[str(tag)] = part["env"]
        return worlds


def read_json(path: Path, *, kind: type[Any] = dict) -> Any:
    """What a file holds, where it is there and is what it should be."""
    try:
        found = parse_finite_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, kind) else None


def setting(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """`learn.steps` in plain settings."""
    found: Any = settings
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return default
        found = found[key]
    return found


def clean_metrics(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The numbers of a row, and what is not known as None; None where it has no step."""
    kept = {name: value for name, value in row.items() if value is None or _is_number(value)}
    return kept if isinstance(kept.get("step"), int) else None


def clean_summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without values of another type than a `Summary` has; also for what a checkpoint says of the same things."""
    kinds = {field.name: re.split(r"\W", str(field.type))[0] for field in fields(Summary)}
    return {
        name: value
        for name, value in found.items()
        if name not in kinds or value is None or isinstance(value, _SUMMARY_KINDS[kinds[name]])
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < _MAX_NUMBER


def _plain(value: Any) -> Any:
    """With what JSON does not have as text, such as a date of YAML."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    is_json = value is None or isinstance(value, str | bool) or _is_number(value)
    return value if is_json else str(value)

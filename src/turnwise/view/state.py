"""The files of a run come in; whether somebody is at work in it goes out.

A lock that a process holds says that the run goes on, and one that nobody holds that it does not. Where locks say
nothing, the files do: a summary that is not older than the metrics is an end, and a run that has long written nothing
was killed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from turnwise.infra.parsing import parse_json
from turnwise.report.run_dir import RunDirectory

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
        told = parse_json(lock.read_text(encoding="utf-8"))
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

"""Who waits for whom in this process, since when, and until when at most: a table, and the file that shows it.

Code that waits for something that may not come says so with `waiting`. `write_waits_file` keeps `waiting.json` of a run
up to date, at most once a second: a run that stands still can then be asked from outside what it stands before. Code
that blocks the event loop says nothing itself; it is seen because the loop's pulse stops, and told by its file and
line. An update of a large model blocks it too, for minutes and on purpose: `track_compute` says so, and no warning is
logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from turnwise.errors import RunError
from turnwise.infra.atomic_files import atomic_write
from turnwise.infra.parsing import parse_json

log = logging.getLogger(__name__)

_SHOWN_AFTER_S = 1.0
"""Shorter waits are how a run breathes."""
_MAX_SHOWN = 50
"""The oldest: of a hundred episodes that wait for one engine, some tell enough."""
_PERIOD_S = 1.0
_PULSE_S = 0.5
_STALLED_AFTER_S = 5.0
"""A loop without a pulse for this long is reported; passes and updates of small models are shorter."""
_WARNED_AFTER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    who: str
    reason: str
    begun_s: float
    """Monotonic clock: the wall clock may jump during a wait."""
    deadline_s: float | None
    """After how many seconds it is given up; None if the other side has a deadline of its own."""
    is_computing: bool = False
    """Whether it is known to get on with something, however long that takes."""

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.begun_s

    def to_dict(self) -> dict[str, Any]:
        """For other processes: start of the wait on the wall clock, as it is set now."""
        return {
            "who": self.who,
            "for": self.reason,
            "since": round(time.time() - self.waited_s, 3),
            "deadline_s": self.deadline_s,
            "pid": os.getpid(),
        }


_open: dict[int, Wait] = {}
_numbers = count()
_computed: dict[int, str] = {}
"""By thread: what it computes."""


@contextmanager
def waiting(who: str, reason: str, deadline_s: float | None) -> Iterator[None]:
    """Inside, `who` waits for `reason`, and will not wait longer than `deadline_s`."""
    number = next(_numbers)
    _open[number] = Wait(who=who, reason=reason, begun_s=time.monotonic(), deadline_s=deadline_s)
    try:
        yield
    finally:
        del _open[number]


@contextmanager
def track_compute(what: str) -> Iterator[None]:
    """Inside, this thread computes `what` and gives the event loop back when it has it; as a decorator too."""
    thread = threading.get_ident()
    _computed[thread] = what
    try:
        yield
    finally:
        _computed.pop(thread, None)


def list_waits(*, older_than_s: float = 0.0) -> list[Wait]:
    """Those that go on now, the oldest first."""
    return sorted(
        (wait for wait in _open.copy().values() if wait.waited_s >= older_than_s), key=lambda wait: wait.begun_s
    )


class _LoopWatchdog:
    """Of the event loop that it is made in: whether it comes back from what it calls, and what it is in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._beat()

    def _beat(self) -> None:
        self._last_s = time.monotonic()
        self._next = self._loop.call_later(_PULSE_S, self._beat)

    def stop(self) -> None:
        self._next.cancel()

    def find_stall(self) -> Wait | None:
        """Since when it has not come back, and from where; None where it is well."""
        last_s = self._last_s
        frame = sys._current_frames().get(self._thread)
        if time.monotonic() - last_s < _STALLED_AFTER_S or frame is None:
            return None
        computed = _computed.get(self._thread)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
        return Wait(
            who="the event loop",
            reason=computed or f"code that has not returned: {place}",
            begun_s=last_s,
            deadline_s=None,
            is_computing=computed is not None,
        )


@contextmanager
def write_waits_file(path: Path) -> Iterator[None]:
    """Inside, the file tells who has been waiting for a second or more; afterwards nothing of this process is in it.

    Called where an event loop runs.
    """
    is_over, pulse = threading.Event(), _LoopWatchdog()
    thread = threading.Thread(target=_keep_up, args=(path, is_over, pulse), name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        pulse.stop()
        thread.join(_PERIOD_S)
        _write(path, [])


def _keep_up(path: Path, is_over: threading.Event, pulse: _LoopWatchdog) -> None:
    written: list[Wait] = []
    warned_s = time.monotonic()
    while not is_over.wait(_PERIOD_S):
        waits = list_waits(older_than_s=_SHOWN_AFTER_S)[:_MAX_SHOWN]
        if (stall := pulse.find_stall()) is not None:
            waits.insert(0, stall)
        if waits != written:
            _write(path, [wait.to_dict() for wait in waits])
            written = waits
        # Whoever waits while the event loop computes waits for that.
        is_doubtful = bool(waits) and not waits[0].is_computing
        if is_doubtful and min(waits[0].waited_s, time.monotonic() - warned_s) >= _WARNED_AFTER_S:
            warned_s = time.monotonic()
            others = f", and {len(waits) - 1} others wait" if waits[1:] else ""
            log.warning("%s has been waiting %.0f s for %s%s", waits[0].who, waits[0].waited_s, waits[0].reason, others)


def _write(path: Path, found: list[dict[str, Any]]) -> None:
    """What other processes of the run have written stays, while they live. A disk that is full ends no run here."""
    rows = [row for row in _read(path) if _is_of_another(row)] + found
    with suppress(RunError, OSError):
        if rows:
            atomic_write(path, json.dumps(rows, indent=1))
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> list[Any]:
    try:
        rows = parse_json(path.read_text())
    except (OSError, ValueError):
        return []
    return rows if isinstance(rows, list) else []


def _is_of_another(row: Any) -> bool:
    pid = row.get("pid") if isinstance(row, dict) else None
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True

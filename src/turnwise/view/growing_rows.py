"""A file of JSON lines that another process writes comes in; its rows go out, and nothing is read twice.

A last line that is torn waits for its rest. A file that was replaced or cut, as a resumed run does it, is read anew.
A line that is damaged is left out: whoever looks at a run sees what can be seen.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

from turnwise.infra.parsing import parse_json


class GrowingRows:
    """One file, which need not be there yet; for any number of threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
        with self._path.open("rb") as file:
            file.seek(self._end)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        self._rows += [row for line in whole.split(b"\n") if line and (row := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None

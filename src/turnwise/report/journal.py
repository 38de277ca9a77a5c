"""The finished episodes of one unfinished rollout, so that a process that is killed loses none of them.

A line is written for each as it ends, as for a step's samples, behind a checksum of itself: what was damaged since is
left out with a word. A last line says that the rollout is whole. It refuses to know what becomes of a
rollout; whoever stores it removes the file.
"""

from __future__ import annotations

import json
import logging
import zlib
from pathlib import Path

from turnwise.infra.atomic_files import append_line, write_whole
from turnwise.infra.parsing import parse_json
from turnwise.report.run_dir import step_name
from turnwise.report.trajectories import decode_trajectory, encode_trajectory
from turnwise.types import Trajectory

log = logging.getLogger(__name__)

_WHOLE = b"whole"
"""The last line of a rollout that was finished."""


class TrajectoryJournal:
    """One file per rollout. A process that dies while it writes leaves a part of a line behind, and nothing worse."""

    def __init__(self, directory: Path, rollout: int) -> None:
        self._path = directory / f"{step_name(rollout)}.jsonl"

    def read(self) -> list[Trajectory]:
        """All that was appended, by this process or one before it; a line that was cut off is removed."""
        return [trajectory for line in self._lines() if (trajectory := self._decode(line)) is not None]

    def read_whole(self) -> list[Trajectory]:
        """The same where the rollout was finished and nothing of it is damaged; otherwise nothing, and it goes."""
        lines = self._lines()
        found = [self._decode(line) for line in lines[:-1]]
        played = [trajectory for trajectory in found if trajectory is not None]
        if not lines or lines[-1] != _WHOLE or len(played) < len(found):
            self.remove()
            return []
        return played

    def finish(self) -> None:
        """Every episode of the rollout is there."""
        append_line(self._path, _WHOLE.decode())

    def _lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            write_whole(self._path, whole)
        return whole.splitlines()

    def append(self, trajectory: Trajectory) -> None:
        line = json.dumps(encode_trajectory(trajectory), allow_nan=False)
        append_line(self._path, f"{_checksum(line.encode())} {line}")

    def _decode(self, line: bytes) -> Trajectory | None:
        content = _sound(line)
        if content is None:
            log.warning("%s: an episode is damaged and is left out", self._path)
            return None
        return decode_trajectory(parse_json(content))

    def remove(self) -> None:
        """Its rollout is stored elsewhere."""
        self._path.unlink(missing_ok=True)


def find_damaged_episodes(file: Path) -> list[str]:
    """What of a journal is not as it was written; a last line that was cut off is how a kill leaves it."""
    lines = file.read_bytes().split(b"\n")[:-1]
    return [
        f"line {number} is damaged: its checksum is another one"
        for number, line in enumerate(lines, start=1)
        if _sound(line) is None and (line != _WHOLE or number < len(lines))
    ]


def _sound(line: bytes) -> bytes | None:
    """What a line holds; None where it is not as it was written."""
    checksum, _, content = line.partition(b" ")
    return content if checksum.decode("ascii", "replace") == _checksum(content) else None


def _checksum(line: bytes) -> str:
    return f"{zlib.crc32(line):08x}"

"""The finished episodes of one unfinished rollout, so that a process that is killed loses none of them.

A line is written for each as it ends, as for a step's samples. It refuses to know what becomes of a rollout; whoever
stores it removes the file.
"""

from __future__ import annotations

import json
from pathlib import Path

from turnwise.floor.files import append_line, write_whole
from turnwise.report.run_dir import step_name
from turnwise.report.trajectories import encode_trajectory, read_trajectories
from turnwise.types import Trajectory


class TrajectoryJournal:
    """One file per rollout. A process that dies while it writes leaves a part of a line behind, and nothing worse."""

    def __init__(self, directory: Path, rollout: int) -> None:
        self._path = directory / f"{step_name(rollout)}.jsonl"

    def read(self) -> list[Trajectory]:
        """All that was appended, by this process or one before it; a line that was cut off is removed."""
        if not self._path.exists():
            return []
        written = self._path.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if whole != written:
            write_whole(self._path, whole)
        return read_trajectories(self._path)

    def append(self, trajectory: Trajectory) -> None:
        append_line(self._path, json.dumps(encode_trajectory(trajectory), allow_nan=False))

    def remove(self) -> None:
        """Its rollout is stored elsewhere."""
        self._path.unlink(missing_ok=True)

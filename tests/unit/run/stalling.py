"""`turnwise` as a program that stalls in the middle of a rollout: `stalling.py MARK N ...`, with the command's words.

After N finished episodes it makes the file MARK and does nothing more, until it is killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from turnwise.cli import main
from turnwise.report.trajectories import TrajectoryJournal
from turnwise.types import Trajectory


def stall_after(num_episodes: int, mark: Path) -> None:
    append = TrajectoryJournal.append
    num_left = num_episodes

    def append_or_stall(journal: TrajectoryJournal, trajectory: Trajectory) -> None:
        nonlocal num_left
        append(journal, trajectory)
        num_left -= 1
        if num_left == 0:
            mark.touch()
            threading.Event().wait()

    TrajectoryJournal.append = append_or_stall  # type: ignore[method-assign]


if __name__ == "__main__":
    stall_after(int(sys.argv[2]), Path(sys.argv[1]))
    sys.exit(main(sys.argv[3:]))

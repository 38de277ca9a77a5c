"""Episodes of rollouts that no checkpoint covers, so that none of them is played twice.

A run that goes back to a checkpoint makes its later updates again. The episodes they learn from are read here, not
played: nothing is lost, and every update learns from what it learnt from before.
"""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.report.journal import TrajectoryJournal
from turnwise.report.run_dir import RunDirectory
from turnwise.types import Trajectory, TrajectoryId


class Journals:
    """One journal per rollout, in the directory of a run."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._oldest = 1
        """Rollouts before it have no journal any more."""

    def read(self, rollout: int) -> Mapping[TrajectoryId, Trajectory]:
        return {played.id: played for played in self._journal(rollout).read()}

    def read_whole(self, rollout: int) -> Mapping[TrajectoryId, Trajectory]:
        """The same of a rollout that was finished; of any other nothing, and it is forgotten."""
        return {played.id: played for played in self._journal(rollout).read_whole()}

    def finish(self, rollout: int) -> None:
        """Every episode of it is there."""
        self._journal(rollout).finish()

    def append(self, trajectory: Trajectory) -> None:
        self._journal(trajectory.id.rollout).append(trajectory)

    def forget_covered(self) -> None:
        """Nobody goes back behind the newest checkpoint."""
        steps = self._directory.checkpoint_steps()
        newest = steps[-1] if steps else 0
        for rollout in range(self._oldest, newest + 1):
            self._journal(rollout).remove()
        self._oldest = max(self._oldest, newest + 1)

    def _journal(self, rollout: int) -> TrajectoryJournal:
        return TrajectoryJournal(self._directory.unfinished, rollout)

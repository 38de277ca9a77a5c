"""How plays and records are named: structured, printable and sortable, the same in every process.

A task's own name is `Task.id`; from it come the names of its group, its trajectories and their experiences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TrajectoryId:
    """Structured, printable, sortable: `7/frozen_lake/train/10003/2` is sibling 2 of that task in rollout 7."""

    rollout: int
    task_id: str
    sibling: int

    def __str__(self) -> str:
        return f"{self.rollout}/{self.task_id}/{self.sibling}"

    @property
    def group(self) -> str:
        return f"{self.rollout}/{self.task_id}"

    @property
    def tag(self) -> str:
        return self.task_id.rsplit("/", 2)[0]


@dataclass(frozen=True, slots=True, order=True)
class ExperienceId:
    trajectory: TrajectoryId
    segment_index: int

    def __str__(self) -> str:
        return f"{self.trajectory}#{self.segment_index}"

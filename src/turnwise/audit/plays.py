"""Trajectories token by token in plain lists: what the slow oracle of credit reads.

In: samples and what the learner said about their rows. Out: one `Play` for each trajectory. It refuses to know how
`credit` lays out the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.types import Annotations, Sample, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One trajectory, token by token in playing order."""

    group: str
    rows: list[int]
    """Of the samples, in order."""
    turns: list[int]
    """[tokens] the turn of each, counted from 0."""
    rewards: list[float]
    """[turns]"""
    states: list[int]
    """[turns]"""
    steps: list[int]
    """[turns] the step of its workflow that each belongs to."""
    penalties: list[float]
    """[tokens]"""
    values: list[float]
    """[tokens]"""
    is_truncated: bool
    greedy_return: float | None

    @property
    def total(self) -> float:
        return sum(self.rewards) + sum(self.penalties)

    def token_rewards(self) -> list[float]:
        """[tokens] that of a turn on its last token, and penalties where they were paid."""
        paid = list(self.penalties)
        for token, turn in enumerate(self.turns):
            if token + 1 == len(self.turns) or self.turns[token + 1] != turn:
                paid[token] += self.rewards[turn]
        return paid

    def turn_rewards(self) -> list[float]:
        """[turns] with the penalties of their tokens."""
        paid = list(self.rewards)
        for turn, penalty in zip(self.turns, self.penalties, strict=True):
            paid[turn] += penalty
        return paid

    def spread(self, per_turn: Sequence[float]) -> list[float]:
        """[tokens] from [turns]"""
        return [per_turn[turn] for turn in self.turns]


def play_back(samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]) -> dict[TrajectoryId, Play]:
    """Annotations are in the order of the samples' experiences, row by row."""
    of_trajectory: dict[TrajectoryId, list[int]] = {}
    for row in sorted(rows, key=lambda i: samples[i].experience.id.segment_index):
        of_trajectory.setdefault(samples[row].experience.id.trajectory, []).append(row)
    return {name: _lay_out(samples, annotations, numbers) for name, numbers in of_trajectory.items()}


def _lay_out(samples: Sequence[Sample], annotations: Annotations, rows: list[int]) -> Play:
    turns: list[int] = []
    rewards: list[float] = []
    states: list[int] = []
    steps: list[int] = []
    penalties: list[float] = []
    values: list[float] = []
    for row in rows:
        experience = samples[row].experience
        mask = experience.segment.loss_mask
        first = int(experience.turn_indices[0]) - len(rewards) if len(experience.turn_indices) else 0
        turns += (experience.segment.turn_ids[mask] - first).tolist()
        rewards += experience.turn_rewards.astype(float).tolist()
        states += experience.turn_states.tolist()
        steps += experience.turn_steps.tolist()
        charged = annotations.token_penalties
        penalties += (charged[row][mask] if charged is not None else np.zeros(mask.sum())).astype(float).tolist()
        values += samples[row].values[mask].astype(float).tolist()
    last = samples[rows[-1]].experience
    return Play(
        group=last.id.trajectory.group,
        rows=rows,
        turns=turns,
        rewards=rewards,
        states=states,
        steps=steps,
        penalties=penalties,
        values=values,
        is_truncated=last.is_truncated,
        greedy_return=last.greedy_return,
    )

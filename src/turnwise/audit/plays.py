"""Trajectories token by token in plain lists: what the slow oracle of credit reads.

In: samples and what the learner said about their rows. Out: one `Play` for each trajectory. It refuses to know how
`credit` lays out the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

import numpy as np

from turnwise.types import Annotations, Experience, Sample, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One trajectory, token by token in playing order."""

    group: str
    places: list[tuple[int, int]]
    """[tokens] the row of the samples that each comes from, and where in it."""
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


class _Turn(NamedTuple):
    turn: int
    """Counted over the trajectory, as in a token: both sort by it first."""
    reward: float
    state: int
    step: int


class _Token(NamedTuple):
    turn: int
    row: int
    place: int
    penalty: float
    value: float


def _lay_out(samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]) -> Play:
    # Sorted, and not row by row: turns of two rows may alternate.
    turns = sorted(turn for row in rows for turn in _turns_of(samples[row].experience))
    tokens = sorted(token for row in rows for token in _tokens_of(samples, annotations, row))
    number_of = {turn.turn: number for number, turn in enumerate(turns)}
    last = samples[rows[-1]].experience
    return Play(
        group=last.id.trajectory.group,
        places=[(token.row, token.place) for token in tokens],
        turns=[number_of[token.turn] for token in tokens],
        rewards=[turn.reward for turn in turns],
        states=[turn.state for turn in turns],
        steps=[turn.step for turn in turns],
        penalties=[token.penalty for token in tokens],
        values=[token.value for token in tokens],
        is_truncated=last.is_truncated,
        greedy_return=last.greedy_return,
    )


def _turns_of(experience: Experience) -> Iterator[_Turn]:
    columns = (experience.turn_indices, experience.turn_rewards, experience.turn_states, experience.turn_steps)
    return starmap(_Turn, zip(*(column.tolist() for column in columns), strict=True))


def _tokens_of(samples: Sequence[Sample], annotations: Annotations, row: int) -> Iterator[_Token]:
    """The sampled ones."""
    segment, charged = samples[row].experience.segment, annotations.token_penalties
    penalties = np.zeros(len(segment)) if charged is None else charged[row]
    places = np.flatnonzero(segment.loss_mask)
    numbers = (array[places].tolist() for array in (segment.turn_ids, penalties, samples[row].values))
    for turn, penalty, value, place in zip(*numbers, places.tolist(), strict=True):
        yield _Token(turn=turn, row=row, place=place, penalty=penalty, value=value)

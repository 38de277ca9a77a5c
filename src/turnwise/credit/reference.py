"""Trajectories as plain lists, and plain arithmetic: for the `reference` of each advantage estimator.

Shares nothing with `credit.layout`, so that a mistake would have to be made twice. Uses Python floats alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from math import sqrt
from typing import NamedTuple

import numpy as np

from turnwise.types import Annotations, Experience, Sample, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrajectory:
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

    def turns_to_tokens(self, per_turn: Sequence[float]) -> list[float]:
        """[tokens] from [turns]"""
        return [per_turn[turn] for turn in self.turns]


def unpack_samples(
    samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]
) -> dict[TrajectoryId, TokenTrajectory]:
    """The trajectories of some rows. Annotations are in the order of the samples' experiences, row by row."""
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


def _lay_out(samples: Sequence[Sample], annotations: Annotations, rows: Sequence[int]) -> TokenTrajectory:
    # Sorted, and not row by row: turns of two rows may alternate.
    turns = sorted(turn for row in rows for turn in _turns_of(samples[row].experience))
    tokens = sorted(token for row in rows for token in _tokens_of(samples, annotations, row))
    number_of = {turn.turn: number for number, turn in enumerate(turns)}
    last = samples[rows[-1]].experience
    return TokenTrajectory(
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


_EPSILON = 1e-6
"""As docs/advantage_estimators.md adds it to a standard deviation."""
WHITENING_VARIANCE = 1e-8
"""Added to the variance that whitening divides by."""


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def spread(numbers: Sequence[float]) -> float:
    """The unbiased standard deviation; 0 of a single number."""
    middle = mean(numbers)
    return sqrt(sum((number - middle) ** 2 for number in numbers) / max(len(numbers) - 1, 1))


def center(scores: Sequence[float]) -> list[float]:
    """Minus their mean; a single score stays as it is."""
    return [score - mean(scores) for score in scores] if len(scores) > 1 else list(scores)


def standardize(scores: Sequence[float]) -> list[float]:
    """Minus their mean, divided by their standard deviation; a single score stays as it is."""
    if len(scores) == 1:
        return [scores[0] / (1 + _EPSILON)]
    return [score / (spread(scores) + _EPSILON) for score in center(scores)]


def discount(rewards: Sequence[float], gamma: float) -> list[float]:
    """The discounted sum of rewards from each on."""
    to_come, following = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = to_come[t] = rewards[t] + gamma * following
    return to_come


def discount_with_values(
    rewards: Sequence[float], values: Sequence[float], behind: float, gamma: float, lam: float
) -> list[float]:
    """Returns of GAE: advantages plus values; `behind` is the value behind the end."""
    returns, advantage, following = [0.0] * len(rewards), 0.0, behind
    for t in reversed(range(len(rewards))):
        advantage = rewards[t] + gamma * following - values[t] + gamma * lam * advantage
        returns[t] = advantage + values[t]
        following = values[t]
    return returns


def by_group(
    trajectories: Sequence[TokenTrajectory], reference: Callable[[Sequence[TokenTrajectory]], list[list[float]]]
) -> list[list[float]]:
    """What `reference` says of each group, in the order of the trajectories."""
    groups: dict[str, list[int]] = {}
    for number, trajectory in enumerate(trajectories):
        groups.setdefault(trajectory.group, []).append(number)
    found: dict[int, list[float]] = {}
    for numbers in groups.values():
        found.update(zip(numbers, reference([trajectories[n] for n in numbers]), strict=True))
    return [found[n] for n in range(len(trajectories))]

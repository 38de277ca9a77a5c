"""Where turns and trajectories begin and end in a flat run of sampled tokens, and ragged passes over them.

In: experiences, or padded arrays with a mask. Out: a `TurnLayout`, on which every estimator is a few array lines. It
is the one place where rows are put back into trajectories, so that no estimator can depend on how a trajectory was
cut into rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.types import Experience, FloatArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnLayout:
    """Sampled tokens in playing order, all trajectories one after another.

    Example, two trajectories of turns (2 + 2 tokens) and (3 tokens): `turn_starts=[0, 2, 4, 7]`,
    `trajectory_starts=[0, 2, 3]` (counted in turns), 7 tokens.
    """

    turn_starts: Ints
    """[turns + 1] offsets into the tokens."""
    trajectory_starts: Ints
    """[trajectories + 1] offsets into the turns."""

    @property
    def num_tokens(self) -> int:
        return int(self.turn_starts[-1])

    @property
    def turn_last(self) -> Ints:
        """[turns] the last token of each turn."""
        return self.turn_starts[1:] - 1

    @property
    def turn_first(self) -> Ints:
        return self.turn_starts[:-1]

    @property
    def trajectory_token_starts(self) -> Ints:
        return self.turn_starts[self.trajectory_starts]

    def turns_to_tokens(self, per_turn: Floats) -> Floats:
        return np.repeat(per_turn, np.diff(self.turn_starts))

    def trajectories_to_tokens(self, per_trajectory: Floats) -> Floats:
        return np.repeat(per_trajectory, np.diff(self.trajectory_token_starts))

    def sum_turns(self, per_turn: Floats) -> Floats:
        """[trajectories] sums over the turns of each."""
        return np.add.reduceat(per_turn, self.trajectory_starts[:-1])


def layout_from_keys(trajectory_of_token: Ints, turn_of_token: Ints) -> TurnLayout:
    """From the trajectory and the turn of every token; tokens of a turn lie side by side."""
    new_trajectory = np.flatnonzero(np.diff(trajectory_of_token, prepend=trajectory_of_token[:1] - 1))
    is_new_turn = np.diff(trajectory_of_token, prepend=-1) != 0
    is_new_turn |= np.diff(turn_of_token, prepend=turn_of_token[:1] - 1) != 0
    starts = np.flatnonzero(is_new_turn)
    turn_starts = np.append(starts, len(turn_of_token))
    trajectory_starts = np.append(np.searchsorted(starts, new_trajectory), len(starts))
    return TurnLayout(turn_starts=turn_starts.astype(np.int64), trajectory_starts=trajectory_starts.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlayedTokens:
    """The sampled tokens of many experiences in playing order, and the way back to the rows they came from."""

    layout: TurnLayout
    turn_rewards: Floats
    is_truncated: NDArray[np.bool_]
    """[trajectories]"""
    group_of_trajectory: Ints
    """[trajectories] dense numbers"""
    order: Ints
    """The experience indices in playing order."""
    experiences: Sequence[Experience]

    def gather(self, per_experience: Sequence[FloatArray]) -> Floats:
        """Per-token arrays of the rows -> one value per sampled token, in playing order."""
        return np.concatenate([per_experience[i][self.experiences[i].segment.loss_mask] for i in self.order]).astype(
            np.float64
        )

    def scatter(self, per_token: Floats) -> list[FloatArray]:
        """One value per sampled token -> per-token arrays of the rows, zero off the mask, in the given row order."""
        rows = [np.zeros(len(e.segment), dtype=np.float32) for e in self.experiences]
        start = 0
        for i in self.order:
            mask = self.experiences[i].segment.loss_mask
            end = start + int(mask.sum())
            rows[i][mask] = per_token[start:end]
            start = end
        return rows


def play_back(experiences: Sequence[Experience]) -> PlayedTokens:
    """Put rows back into trajectories, whatever order they come in."""
    order = sorted(range(len(experiences)), key=lambda i: experiences[i].id)
    ordered = [experiences[i] for i in order]
    trajectory_ids = list(dict.fromkeys(e.id.trajectory for e in ordered))
    number = {trajectory: n for n, trajectory in enumerate(trajectory_ids)}
    groups = {group: n for n, group in enumerate(dict.fromkeys(t.group for t in trajectory_ids))}
    counts = [e.segment.num_action_tokens for e in ordered]
    trajectory_of_token = np.repeat([number[e.id.trajectory] for e in ordered], counts)
    turn_of_token = np.concatenate([e.segment.turn_ids[e.segment.loss_mask] for e in ordered])
    is_truncated = np.zeros(len(trajectory_ids), dtype=np.bool_)
    for e in ordered:
        is_truncated[number[e.id.trajectory]] |= e.is_truncated
    return PlayedTokens(
        layout=layout_from_keys(trajectory_of_token.astype(np.int64), turn_of_token.astype(np.int64)),
        turn_rewards=np.concatenate([e.turn_rewards for e in ordered]).astype(np.float64),
        is_truncated=is_truncated,
        group_of_trajectory=np.array([groups[t.group] for t in trajectory_ids], dtype=np.int64),
        order=np.array(order, dtype=np.int64),
        experiences=experiences,
    )


def scan_back(values: Floats, starts: Ints, decay: float) -> Floats:
    """`y[i] = values[i] + decay * y[i + 1]` inside each run `starts[k]:starts[k + 1]`, all runs at once."""
    if decay == 0 or len(values) == 0:
        return values.copy()
    lengths = np.diff(starts)
    width = int(lengths.max())
    run = np.repeat(np.arange(len(lengths)), lengths)
    # Right-aligned, runs side by side in a row: the zeros before a run's start are computed and never read.
    column = width - (np.repeat(starts[1:], lengths) - np.arange(len(values)))
    table = np.zeros((width, len(lengths)))
    table[column, run] = values
    for i in range(width - 2, -1, -1):
        table[i] += decay * table[i + 1]
    return table[column, run]


def shift_back(values: Floats, starts: Ints, last: Floats) -> Floats:
    """The next value inside each run; `last[k]` behind the end of run k."""
    following = np.append(values[1:], 0.0)
    following[starts[1:] - 1] = last
    return following


def whiten(advantages: Floats) -> Floats:
    """Mean 0 and variance 1 over the sampled tokens (unbiased variance, as verl and RAGEN compute it)."""
    if len(advantages) < 2:
        return advantages - advantages.mean() if len(advantages) else advantages
    return (advantages - advantages.mean()) / np.sqrt(advantages.var(ddof=1) + 1e-8)

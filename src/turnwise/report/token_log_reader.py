"""The tokens of one step as they were learnt from: as arrays, one by one, or as the samples they came from.

Everything is in the order of the update's Batch. What can be computed from the rest, such as a token's reward share, is
computed here and never stored. It refuses to know files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import RunError, did_you_mean
from turnwise.types import (
    Annotations,
    Batch,
    BoolArray,
    Experience,
    ExperienceId,
    FloatArray,
    IntArray,
    Sample,
    Segment,
    TrajectoryId,
    UpdateTrace,
)


class RecordedToken(NamedTuple):
    """One token of one update. Numbers about sampling and learning are 0 where the token was given and not sampled."""

    step: int
    trajectory: TrajectoryId
    segment_index: int
    """Which of the trajectory's rows it is in, by the first of the segments that were merged into it."""
    position: int
    """Its place in that row, from 0."""
    turn: int
    """The turn it was sampled in, counted over the trajectory; -1 where it was given."""
    token_id: int
    is_sampled: bool
    policy_version: int
    """The oldest version that sampled any token of its row."""
    behavior_logprob: float
    proximal_logprob: float
    """Like all that the learner traces: NaN where it does not tell."""
    reference_logprob: float
    """0 where there was no reference."""
    value: float
    """0 where there was no critic."""
    advantage: float
    return_: float
    first_ratio: float
    last_ratio: float
    is_clipped: bool
    entropy: float
    raw_reward: float
    """Of its turn, from the environment."""
    turn_reward: float
    """Of its turn, shaped: what credit was computed from."""
    reward_share: float
    """See `StepTokens.reward_shares`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """[rows] what is known of each row as a whole; `trajectory_ids` has one entry per trajectory."""

    trajectory_ids: tuple[TrajectoryId, ...]
    """`Batch.trajectory_of_row` points into it."""
    segment_indices: IntArray
    num_turns: IntArray
    policy_versions: NDArray[np.int64]
    is_last: BoolArray
    is_truncated: BoolArray
    greedy_returns: NDArray[np.float64]
    """NaN where the task was not played greedily."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnTable:
    """[turns] of all rows, end to end; the fields are those of `Experience`."""

    turn_indices: IntArray
    raw_rewards: FloatArray
    turn_rewards: FloatArray
    turn_states: NDArray[np.uint64]
    turn_steps: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTokens:
    """What is on record of one step: `for token in tokens`, `tokens.to_arrays()`, or its parts."""

    step: int
    policy_version: int
    """The version that the update made."""
    num_trained_rows: int
    num_trained_tokens: int
    """What the update learnt from; more than is here where `report.tokens` bounds the record."""
    rows: RowTable
    turns: TurnTable
    batch: Batch
    has_values: bool
    """Whether a critic said something; without one, values are 0."""
    has_reference: bool
    token_penalties: FloatArray | None
    """KL in the reward, per token; None where it was not charged."""
    trace: UpdateTrace | None
    """None where the learner did not tell."""

    def __len__(self) -> int:
        return len(self.batch.token_ids)

    def __iter__(self) -> Iterator[RecordedToken]:
        return self._records(np.arange(len(self)))

    @property
    def is_complete(self) -> bool:
        """Whether all tokens of the update are here."""
        return len(self) == self.num_trained_tokens

    def of(self, trajectory: TrajectoryId | str, turn: int | None = None) -> list[RecordedToken]:
        """The tokens of one trajectory, or those that were sampled in one of its turns."""
        names = [str(known) for known in self.rows.trajectory_ids]
        if str(trajectory) not in names:
            raise RunError(f"step {self.step} has no trajectory '{trajectory}'. {did_you_mean(str(trajectory), names)}")
        rows = self.batch.trajectory_of_row == names.index(str(trajectory))
        is_asked_for = np.repeat(rows, self.batch.row_lengths)
        if turn is not None:
            is_asked_for &= self.batch.turn_ids == turn
        return list(self._records(np.flatnonzero(is_asked_for)))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays over all tokens, by the names of `RecordedToken`; `row` counts the rows in place of ids."""
        batch, rows = self.batch, self.rows
        row = np.repeat(np.arange(batch.num_rows), batch.row_lengths)
        turn = self._turn_of_token()
        is_sampled = batch.loss_mask
        return {
            "row": row,
            "segment_index": rows.segment_indices[row],
            "position": np.arange(len(self)) - batch.row_starts[row],
            "turn": batch.turn_ids,
            "token_id": batch.token_ids,
            "is_sampled": is_sampled,
            "policy_version": rows.policy_versions[row],
            "behavior_logprob": batch.behavior_logprobs,
            "reference_logprob": batch.reference_logprobs,
            "value": batch.values,
            "advantage": batch.advantages,
            "return_": batch.returns,
            "raw_reward": np.where(is_sampled, self.turns.raw_rewards[turn], np.float32(0)),
            "turn_reward": np.where(is_sampled, self.turns.turn_rewards[turn], np.float32(0)),
            "reward_share": self.reward_shares(),
            **self._traced(),
        }

    def reward_shares(self) -> FloatArray:
        """[tokens] which part of what its trajectory earned or lost the token's turn did; 0 off the loss mask.

        The shaped reward of the turn divided by the sum of the absolute shaped rewards of all turns of the
        trajectory: from -1 to 1, and 0 where all of them earned nothing. Where rewards have one sign, it is the
        turn's part of the return. All sampled tokens of a turn have the same share; penalties of single tokens are
        not in it.
        """
        rewards = self.turns.turn_rewards.astype(np.float64)
        trajectory = np.repeat(self.batch.trajectory_of_row, self.rows.num_turns)
        sums = np.bincount(trajectory, np.abs(rewards), minlength=len(self.rows.trajectory_ids))[trajectory]
        shares = np.divide(rewards, sums, out=np.zeros(len(rewards)), where=sums > 0)
        return np.where(self.batch.loss_mask, shares[self._turn_of_token()], 0.0).astype(np.float32)

    def experiences(self) -> list[Experience]:
        """The rows as credit saw them."""
        batch, rows = self.batch, self.rows
        turn_ends = np.cumsum(rows.num_turns).tolist()
        bounds = zip(batch.row_starts[:-1].tolist(), batch.row_starts[1:].tolist(), strict=True)
        experiences = []
        for row, (start, end) in enumerate(bounds):
            turns = slice(turn_ends[row] - int(rows.num_turns[row]), turn_ends[row])
            greedy = float(rows.greedy_returns[row])
            experiences.append(
                Experience(
                    id=ExperienceId(
                        rows.trajectory_ids[int(batch.trajectory_of_row[row])], int(rows.segment_indices[row])
                    ),
                    segment=Segment(
                        token_ids=batch.token_ids[start:end],
                        loss_mask=batch.loss_mask[start:end],
                        behavior_logprobs=batch.behavior_logprobs[start:end],
                        turn_ids=batch.turn_ids[start:end],
                    ),
                    turn_indices=self.turns.turn_indices[turns],
                    raw_rewards=self.turns.raw_rewards[turns],
                    turn_rewards=self.turns.turn_rewards[turns],
                    turn_states=self.turns.turn_states[turns],
                    turn_steps=self.turns.turn_steps[turns],
                    policy_version=int(rows.policy_versions[row]),
                    is_last=bool(rows.is_last[row]),
                    is_truncated=bool(rows.is_truncated[row]),
                    greedy_return=None if np.isnan(greedy) else greedy,
                )
            )
        return experiences

    def annotations(self) -> Annotations:
        """What credit was computed with: a rule over `experiences()` and these gives the credit it would have given."""
        return Annotations(
            values=self._split(self.batch.values) if self.has_values else None,
            reference_logprobs=self._split(self.batch.reference_logprobs) if self.has_reference else None,
            token_penalties=None if self.token_penalties is None else self._split(self.token_penalties),
        )

    def samples(self) -> list[Sample]:
        """The rows with the credit they were learnt with."""
        names = ("advantages", "returns", "values", "reference_logprobs")
        columns = [self._split(getattr(self.batch, name)) for name in names]
        rows = zip(self.experiences(), *columns, strict=True)
        return [Sample(experience=e, **dict(zip(names, credit, strict=True))) for e, *credit in rows]

    def _split(self, per_token: FloatArray) -> tuple[FloatArray, ...]:
        return tuple(np.split(per_token, self.batch.row_starts[1:-1]))

    def _turn_of_token(self) -> NDArray[np.int64]:
        """[tokens] where in the table of turns a sampled token's turn stands; 0 for the others."""
        batch = self.batch
        # One number for row and turn; rows are in order and their turns ascend.
        known = np.repeat(np.arange(batch.num_rows), self.rows.num_turns) << 32 | self.turns.turn_indices
        asked = np.repeat(np.arange(batch.num_rows), batch.row_lengths) << 32 | np.maximum(batch.turn_ids, 0)
        return np.where(batch.loss_mask, np.searchsorted(known, asked), 0)

    def _traced(self) -> dict[str, NDArray[Any]]:
        if self.trace is None:
            unknown = np.where(self.batch.loss_mask, np.float32(np.nan), np.float32(0))
            names = ("proximal_logprob", "first_ratio", "last_ratio", "entropy")
            return {**dict.fromkeys(names, unknown), "is_clipped": np.zeros(len(self), dtype=np.bool_)}
        return {
            "proximal_logprob": self.trace.proximal_logprobs,
            "first_ratio": self.trace.first_ratios,
            "last_ratio": self.trace.last_ratios,
            "entropy": self.trace.entropies,
            "is_clipped": self.trace.is_clipped,
        }

    def _records(self, index: NDArray[np.int64]) -> Iterator[RecordedToken]:
        arrays = self.to_arrays()
        trajectory = self.batch.trajectory_of_row[arrays["row"][index]].tolist()
        ids = [self.rows.trajectory_ids[number] for number in trajectory]
        columns = [arrays[name][index].tolist() for name in RecordedToken._fields[2:]]
        return (RecordedToken(self.step, *values) for values in zip(ids, *columns, strict=True))

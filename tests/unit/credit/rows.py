"""Experiences for the tests of this room, made from turns of plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from turnwise.types import Annotations, Experience, ExperienceId, FloatArray, Segment, TrajectoryId


@dataclass(frozen=True)
class Play:
    """A trajectory: per turn, its reward and the critic's value at each of its sampled tokens."""

    rewards: Sequence[float]
    values: Sequence[Sequence[float]]
    is_truncated: bool = False
    group: str = "lake/train/1"
    sibling: int = 0
    penalties: Sequence[Sequence[float]] | None = None
    """Per turn, the penalty of each of its tokens; None: no token has one."""
    states: Sequence[int] | None = None
    """Per turn, the state it was played from; None: turn k of every play is in state k."""
    greedy_return: float | None = None
    steps: Sequence[int] | None = None
    """Per turn, the workflow's step it belongs to; None: every turn is a step of its own."""

    @property
    def token_penalties(self) -> Sequence[Sequence[float]]:
        return self.penalties or [[0.0] * len(turn) for turn in self.values]


def make_rows(
    play: Play,
    *,
    cuts: Sequence[int] = (),
    parts: Sequence[Sequence[int]] | None = None,
    padding: int = 1,
    rollout: int = 0,
) -> tuple[list[Experience], list[FloatArray]]:
    """The trajectory as experiences that begin at the turns in `cuts` (and at 0), and the values of their tokens.

    `parts` are the turns of each experience instead, which may alternate. `padding` tokens that nobody sampled stand
    before every turn and after the last.
    """
    trajectory = TrajectoryId(rollout, play.group, play.sibling)
    states = np.array(range(len(play.rewards)) if play.states is None else play.states, dtype=np.uint64)
    steps = np.array(play.steps or range(len(play.rewards)), dtype=np.int32)
    rows = []
    for index, turns in enumerate(parts or [range(*ends) for ends in pairwise([0, *cuts, len(play.rewards)])]):
        turn_ids: list[int] = []
        for turn in turns:
            turn_ids += [-1] * padding + [turn] * len(play.values[turn])
        ids = np.array(turn_ids + [-1] * padding, dtype=np.int32)
        indices = np.array(turns, dtype=np.int32)
        rewards = np.array(play.rewards, dtype=np.float32)[indices]
        rows.append(
            Experience(
                id=ExperienceId(trajectory, index),
                segment=Segment(
                    token_ids=np.arange(len(ids), dtype=np.int32),
                    loss_mask=ids >= 0,
                    behavior_logprobs=np.where(ids >= 0, -0.5, 0.0).astype(np.float32),
                    turn_ids=ids,
                ),
                turn_indices=indices,
                raw_rewards=rewards,
                turn_rewards=rewards,
                turn_states=states[indices],
                turn_steps=steps[indices],
                policy_version=0,
                is_last=turns[-1] == len(play.rewards) - 1,
                is_truncated=play.is_truncated,
                greedy_return=play.greedy_return,
            )
        )
    return rows, spread_over(rows, play.values)


def spread_over(rows: Sequence[Experience], per_turn: Sequence[Sequence[float]]) -> list[FloatArray]:
    """The numbers of each turn's tokens on the rows of one trajectory; off the mask stands what must never be read."""
    arrays = []
    for row in rows:
        array = np.full(len(row.segment), 9.0, dtype=np.float32)
        array[row.segment.loss_mask] = [number for turn in row.turn_indices for number in per_turn[turn]]
        arrays.append(array)
    return arrays


def make_batch(plays: Sequence[Play], **layout: object) -> tuple[list[Experience], Annotations]:
    """The rows of many trajectories, and what the learner knows of their tokens."""
    rows: list[Experience] = []
    values: list[FloatArray] = []
    penalties: list[FloatArray] = []
    for play in plays:
        new_rows, new_values = make_rows(play, **layout)  # type: ignore[arg-type]
        rows += new_rows
        values += new_values
        penalties += spread_over(new_rows, play.token_penalties)
    return rows, Annotations(values=tuple(values), token_penalties=tuple(penalties))


def sampled(rule: object, plays: Sequence[Play], **layout: object) -> list[np.ndarray]:
    """The advantages of each trajectory's sampled tokens, in playing order."""
    return [a for a, _ in credited(rule, plays, **layout)]


def credited(rule: object, plays: Sequence[Play], **layout: object) -> list[tuple[np.ndarray, np.ndarray]]:
    """Advantages and returns of each trajectory's sampled tokens, in playing order; zero off the mask is asserted."""
    rows, annotations = make_batch(plays, **layout)
    samples = rule(rows, annotations)  # type: ignore[operator]
    result = []
    for play in plays:
        own = [s for s in samples if _is_of(s.experience, play)]
        for s in own:
            off = ~s.experience.segment.loss_mask
            assert not s.advantages[off].any()
            assert not s.returns[off].any()
        masks = [s.experience.segment.loss_mask for s in own]
        result.append(
            (
                np.concatenate([s.advantages[m] for s, m in zip(own, masks, strict=True)]),
                np.concatenate([s.returns[m] for s, m in zip(own, masks, strict=True)]),
            )
        )
    return result


def _is_of(row: Experience, play: Play) -> bool:
    return (row.id.trajectory.task_id, row.id.trajectory.sibling) == (play.group, play.sibling)

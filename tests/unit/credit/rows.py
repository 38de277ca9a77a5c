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


def make_rows(
    play: Play, *, cuts: Sequence[int] = (), padding: int = 1, rollout: int = 0
) -> tuple[list[Experience], list[FloatArray]]:
    """The trajectory as experiences that begin at the turns in `cuts` (and at 0), and the values of their tokens.

    `padding` tokens that nobody sampled stand before every turn and after the last.
    """
    starts = [0, *cuts, len(play.rewards)]
    trajectory = TrajectoryId(rollout, play.group, play.sibling)
    rows, values = [], []
    for index, (start, end) in enumerate(pairwise(starts)):
        turn_ids: list[int] = []
        row_values: list[float] = []
        for turn in range(start, end):
            turn_ids += [-1] * padding + [turn] * len(play.values[turn])
            row_values += [9.0] * padding + list(play.values[turn])
        turn_ids += [-1] * padding
        row_values += [9.0] * padding
        ids = np.array(turn_ids, dtype=np.int32)
        rewards = np.array(play.rewards[start:end], dtype=np.float32)
        rows.append(
            Experience(
                id=ExperienceId(trajectory, index),
                segment=Segment(
                    token_ids=np.arange(len(ids), dtype=np.int32),
                    loss_mask=ids >= 0,
                    behavior_logprobs=np.where(ids >= 0, -0.5, 0.0).astype(np.float32),
                    turn_ids=ids,
                ),
                turn_indices=np.arange(start, end, dtype=np.int32),
                raw_rewards=rewards,
                turn_rewards=rewards,
                turn_states=np.arange(start, end, dtype=np.uint64),
                policy_version=0,
                is_last=end == len(play.rewards),
                is_truncated=play.is_truncated,
            )
        )
        values.append(np.array(row_values, dtype=np.float32))
    return rows, values


def sampled(rule: object, plays: Sequence[Play], **layout: object) -> list[np.ndarray]:
    """The advantages of each trajectory's sampled tokens, in playing order."""
    return [a for a, _ in credited(rule, plays, **layout)]


def credited(rule: object, plays: Sequence[Play], **layout: object) -> list[tuple[np.ndarray, np.ndarray]]:
    """Advantages and returns of each trajectory's sampled tokens, in playing order; zero off the mask is asserted."""
    rows, values, owners = [], [], []
    for number, play in enumerate(plays):
        new_rows, new_values = make_rows(play, **layout)  # type: ignore[arg-type]
        rows += new_rows
        values += new_values
        owners += [number] * len(new_rows)
    samples = rule(rows, Annotations(values=tuple(values)))  # type: ignore[operator]
    result = []
    for number in range(len(plays)):
        own = [s for s, owner in zip(samples, owners, strict=True) if owner == number]
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

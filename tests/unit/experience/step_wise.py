"""Trajectories whose calls extend each other, branch off, or see a window: one experience per call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.types import Experience, ExperienceId, Segment, TrajectoryId

VOCAB = 23


@dataclass(frozen=True)
class Call:
    """One model call: the call whose whole conversation it continues (None: a new one), and its new tokens."""

    continues: int | None
    num_new: int
    num_sampled: int
    step: int
    reward: float


def make_calls(
    calls: Sequence[Call], *, seed: int = 0, sibling: int = 0, is_truncated: bool = False
) -> list[Experience]:
    """One experience per call, with random tokens, log-probs, states and versions."""
    rng = np.random.default_rng((seed, sibling))
    rows: list[Experience] = []
    for turn, call in enumerate(calls):
        before = np.zeros(0, np.int32) if call.continues is None else rows[call.continues].segment.token_ids
        new = rng.integers(1, VOCAB, size=call.num_new + call.num_sampled).astype(np.int32)
        token_ids = np.concatenate([before, new])
        mask = np.arange(len(token_ids)) >= len(token_ids) - call.num_sampled
        logprobs = np.where(mask, rng.uniform(-3.5, -2.5, size=len(mask)), 0).astype(np.float32)
        reward = np.array([call.reward], dtype=np.float32)
        rows.append(
            Experience(
                id=ExperienceId(TrajectoryId(3, f"lake/train/{seed}", sibling), turn),
                segment=Segment(
                    token_ids=token_ids,
                    loss_mask=mask,
                    behavior_logprobs=logprobs,
                    turn_ids=np.where(mask, turn, -1).astype(np.int32),
                ),
                turn_indices=np.array([turn], dtype=np.int32),
                raw_rewards=reward,
                turn_rewards=reward - np.float32(0.125),
                turn_states=rng.integers(0, 3, size=1).astype(np.uint64),
                turn_steps=np.array([call.step], dtype=np.int32),
                policy_version=int(rng.integers(0, 5)),
                is_last=turn == len(calls) - 1,
                is_truncated=is_truncated,
                greedy_return=0.5,
            )
        )
    return rows

"""Experiences that an engine sampled and a workflow handed over, without a model."""

from __future__ import annotations

import numpy as np

from turnwise.experience.build import build_experiences
from turnwise.infra.digests import complete, seal_turns
from turnwise.types import (
    Experience,
    FinishReason,
    GenerateRequest,
    Group,
    Sampling,
    Segment,
    StopReason,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
)

TASK = Task(tag="lake", seed=7)


def play(sibling: int, rewards: tuple[float, ...] = (0.0, 1.0), *, policy_version: int = 0) -> Trajectory:
    """One row: `3 1 4 | 10 11 | 5 | 12 11 | …`, two sampled tokens for each reward."""
    ids, turn_ids, logprobs, turns = [3, 1, 4], [-1, -1, -1], [0.0, 0.0, 0.0], []
    for index, reward in enumerate(rewards):
        request = GenerateRequest(
            prompt_ids=np.array(ids, dtype=np.int32), sampling=Sampling(), seed=100 * sibling + index
        )
        sampled = np.array([10 + index + sibling, 11], dtype=np.int32)
        scores = np.array([-0.5 - index, -0.1], dtype=np.float32)
        reply = complete("toy", request, sampled, scores, FinishReason.STOP, policy_version=policy_version)
        ids += [*sampled.tolist(), 5]
        turn_ids += [index, index, -1]
        logprobs += [*scores.tolist(), 0.0]
        turns.append(
            Turn(
                index=index,
                segment_index=0,
                observation=f"state {index}",
                response_text="go",
                actions=("go",),
                reward=reward,
                penalty=0.0,
                policy_version=policy_version,
                step=index,
                origin=reply.origin,
            )
        )
    of_turn = np.array(turn_ids[:-1], dtype=np.int32)
    segment = Segment(
        token_ids=np.array(ids[:-1], dtype=np.int32),
        loss_mask=of_turn >= 0,
        behavior_logprobs=np.array(logprobs[:-1], dtype=np.float32),
        turn_ids=of_turn,
    )
    return seal_turns(
        Trajectory(
            id=TrajectoryId(1, TASK.id, sibling),
            task=TASK,
            segments=(segment,),
            turns=tuple(turns),
            stop_reason=StopReason.TERMINATED,
            is_success=True,
        )
    )


def played_group(size: int = 2) -> list[Experience]:
    return build_experiences([Group(task=TASK, trajectories=tuple(play(n, (0.0, 1.0 + n)) for n in range(size)))])

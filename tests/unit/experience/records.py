"""Trajectories with tokens that tell where they come from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.types import Group, Segment, StopReason, Task, Trajectory, TrajectoryId, Turn


def make_segment(turns: Sequence[int]) -> Segment:
    """Two tokens of context and two sampled ones per turn."""
    turn_ids = [i for turn in turns for i in (-1, -1, turn, turn)]
    mask = np.array(turn_ids) >= 0
    return Segment(
        token_ids=np.arange(len(turn_ids), dtype=np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -0.5, 0.0).astype(np.float32),
        turn_ids=np.array(turn_ids, dtype=np.int32),
    )


def make_trajectory(
    cuts: Sequence[Sequence[int]] = ((0, 1),),
    *,
    seed: int = 0,
    sibling: int = 0,
    rollout: int = 0,
    versions: Sequence[int] | None = None,
    stop_reason: StopReason = StopReason.TERMINATED,
) -> Trajectory:
    """`cuts` names the turns of each segment."""
    task = Task(tag="words", seed=seed)
    turns = [
        Turn(
            index=turn,
            step=turn,
            segment_index=index,
            observation="",
            response_text="",
            actions=(),
            reward=float(turn),
            penalty=-0.25 * (turn % 2),
            policy_version=versions[turn] if versions else 0,
            info={},
        )
        for index, segment in enumerate(cuts)
        for turn in segment
    ]
    return Trajectory(
        id=TrajectoryId(rollout, task.id, sibling),
        task=task,
        segments=tuple(make_segment(turns) for turns in cuts),
        turns=tuple(turns),
        stop_reason=stop_reason,
        is_success=True,
    )


def make_group(size: int, *, seed: int = 0, rollout: int = 0, version: int = 0) -> Group:
    trajectories = tuple(
        make_trajectory(((0,),), seed=seed, sibling=n, rollout=rollout, versions=[version]) for n in range(size)
    )
    return Group(task=trajectories[0].task, trajectories=trajectories)

"""Small, complete objects for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turnwise.report.manifest import Manifest, collect_manifest
from turnwise.report.run_dir import Summary
from turnwise.types import Segment, StopReason, Task, Trajectory, TrajectoryId, Turn


@pytest.fixture
def manifest() -> Manifest:
    return collect_manifest("frozenlake", 7, command=["turnwise", "train"])


@pytest.fixture
def make_summary() -> Callable[..., Summary]:
    def make(**changes: Any) -> Summary:
        values: dict[str, Any] = {
            "recipe": "frozenlake",
            "env": "frozen_lake",
            "seed": 7,
            "steps": 120,
            "wall_s": 268.4,
            "setup_s": 9.0,
            "success_before": 0.185,
            "success_after": 0.79,
            "return_before": 0.02,
            "return_after": 0.71,
            "eval_episodes": 200,
            "baselines": {"random": 0.02, "hole_blind": 0.155, "oracle": 1.0},
            "tokens_sampled": 412_345,
            "tokens_trained": 398_211,
            "time_split": {"rollout": 135.0, "env": 6.0, "learn": 96.0, "sync": 2.4, "other": 29.0},
            "policy_version": 120,
            "warm_start": {"demonstrations": 400, "steps": 60},
        }
        return Summary(**(values | changes))

    return make


@pytest.fixture
def make_turn() -> Callable[..., Turn]:
    def make(index: int = 0, **changes: Any) -> Turn:
        values: dict[str, Any] = {
            "index": index,
            "segment_index": 0,
            "observation": "P_O\n__G",
            "response_text": "Down",
            "actions": ("Down",),
            "reward": 0.0,
            "penalty": 0.0,
            "policy_version": 3,
            "step": index,
        }
        return Turn(**(values | changes))

    return make


@pytest.fixture
def make_trajectory(make_turn: Callable[..., Turn]) -> Callable[..., Trajectory]:
    def make(sibling: int = 0, *, tag: str = "frozen_lake", rewards: tuple[float, ...] = (0.0, 1.0), **changes: Any):
        task = Task(tag=tag, seed=10003)
        # Two sampled tokens per turn, one given token before each.
        num_turns = len(rewards)
        segment = Segment(
            token_ids=np.arange(3 * num_turns, dtype=np.int32),
            loss_mask=np.tile([False, True, True], num_turns),
            behavior_logprobs=np.tile(np.array([0.0, -1.2, -0.1], dtype=np.float32), num_turns),
            turn_ids=np.repeat(np.arange(num_turns, dtype=np.int32), 3) * np.tile([0, 1, 1], num_turns).astype(np.int32)
            - np.tile([1, 0, 0], num_turns).astype(np.int32),
        )
        values: dict[str, Any] = {
            "id": TrajectoryId(7, task.id, sibling),
            "task": task,
            "segments": (segment,),
            "turns": tuple(make_turn(index, reward=reward) for index, reward in enumerate(rewards)),
            "stop_reason": StopReason.TERMINATED,
            "is_success": sum(rewards) > 0,
        }
        return Trajectory(**(values | changes))

    return make

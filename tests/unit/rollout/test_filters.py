"""Which groups pass a filter: by raw rewards or length, ranked, by mass or by bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from turnwise.config.schema_learn import NoFilter, ThresholdFilter, TopKFilter, TopPFilter
from turnwise.rollout.scoring import filter_groups, score_group
from turnwise.types import Group, StopReason, Task, Trajectory, TrajectoryId, Turn

FILTERS = TypeAdapter(NoFilter | TopKFilter | TopPFilter | ThresholdFilter)


def trajectory(seed: int, sibling: int, reward: float, turns: int, penalty: float, *, failed: bool) -> Trajectory:
    task = Task(tag="words", seed=seed)
    return Trajectory(
        id=TrajectoryId(0, task.id, sibling),
        task=task,
        segments=(),
        turns=tuple(
            Turn(
                index=index,
                step=index,
                segment_index=0,
                observation="",
                response_text="",
                actions=(),
                reward=reward if index == turns - 1 else 0.0,
                penalty=penalty,
                policy_version=0,
                info={},
            )
            for index in range(turns)
        ),
        stop_reason=StopReason.ENV_ERROR if failed else StopReason.TERMINATED,
        is_success=False,
    )


def group(
    seed: int, rewards: list[float], *, turns: int = 1, penalties: tuple[float, ...] = (), failed: tuple[int, ...] = ()
) -> Group:
    penalties = penalties or (0.0,) * len(rewards)
    return Group(
        task=Task(tag="words", seed=seed),
        trajectories=tuple(
            trajectory(seed, n, reward, turns, penalties[n], failed=n in failed) for n, reward in enumerate(rewards)
        ),
    )


GROUPS = [
    group(0, [0.0, 0.0]),
    group(1, [0.0, 1.0], turns=3),
    group(2, [1.0, 1.0], turns=2),
    group(3, [0.0, 4.0]),
]


def kept(**settings: Any) -> list[int]:
    chosen = FILTERS.validate_python(settings)
    return [g.task.seed for g in filter_groups(GROUPS, chosen)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"type": "none"}, [0, 1, 2, 3]),
        ({"type": "top_k", "share": 0.25}, [3]),
        ({"type": "top_k", "share": 0.5}, [1, 3]),
        ({"type": "top_k", "share": 0.5, "by": "reward_mean"}, [2, 3]),
        ({"type": "top_k", "share": 0.25, "by": "length"}, [1]),
        ({"type": "top_k", "share": 0.5, "order": "smallest"}, [0, 2]),
        ({"type": "top_k", "share": 0.01}, [3]),
        ({"type": "top_p", "share": 0.8}, [3]),
        ({"type": "top_p", "share": 0.81}, [1, 3]),
        ({"type": "top_p", "share": 1.0}, [1, 3]),
        ({"type": "threshold"}, [1, 3]),
        ({"type": "threshold", "above": 1.0}, [3]),
        ({"type": "threshold", "by": "reward_mean", "above": 0.1, "below": 0.9}, [1]),
        ({"type": "threshold", "by": "reward_mean", "above": None, "below": 0.9}, [0, 1]),
    ],
)
def test_groups_pass(settings: dict[str, Any], expected: list[int]) -> None:
    assert kept(**settings) == expected


def test_scores_are_raw_and_penalties_do_not_count() -> None:
    only_penalties_differ = group(0, [1.0, 1.0], penalties=(0.0, -5.0))
    assert score_group(only_penalties_differ, "reward_std") == 0
    assert score_group(only_penalties_differ, "reward_mean") == 1


def test_failures_do_not_count_and_a_group_of_failures_never_passes() -> None:
    half = group(0, [0.0, 100.0], failed=(1,))
    dead = group(1, [0.0, 100.0], failed=(0, 1))
    assert score_group(half, "reward_std") == 0
    assert math.isnan(score_group(dead, "reward_std"))
    for settings in ({"type": "threshold", "above": None}, {"type": "top_k", "share": 1.0, "order": "smallest"}):
        assert filter_groups([half, dead], FILTERS.validate_python(settings)) == [half]


def test_top_p_of_groups_without_spread_keeps_none() -> None:
    assert filter_groups([group(0, [1.0, 1.0]), group(1, [0.0, 0.0])], TopPFilter(type="top_p")) == []


@given(st.lists(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2), min_size=1, max_size=8), st.randoms())
def test_the_order_of_groups_changes_nothing_but_their_order(rewards: list[list[float]], random: Any) -> None:
    groups = [group(seed, siblings) for seed, siblings in enumerate(rewards)]
    shuffled = random.sample(groups, len(groups))
    scores = {g.task.seed: score_group(g, "reward_std") for g in groups}
    for settings in (
        {"type": "top_k", "share": 0.5},
        {"type": "top_p", "share": 0.5},
        {"type": "threshold", "above": 0.2},
    ):
        one = filter_groups(groups, FILTERS.validate_python(settings))
        other = filter_groups(shuffled, FILTERS.validate_python(settings))
        assert sorted(scores[g.task.seed] for g in one) == sorted(scores[g.task.seed] for g in other)
        assert [g.task.seed for g in one] == sorted(g.task.seed for g in one)

"""Trajectories become records: turns stay with the segment that holds their tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from turnwise.experience.build import build_experiences, split_trajectory
from turnwise.types import Group, StopReason

from .records import make_trajectory


@pytest.mark.parametrize("cuts", [((0, 1, 2),), ((0,), (1,), (2,)), ((0, 1), (2,)), ((0,), (1, 2))])
def test_turns_are_matched_to_segments(cuts: tuple[tuple[int, ...], ...]) -> None:
    trajectory = make_trajectory(cuts)
    experiences = split_trajectory(trajectory)
    assert [e.turn_indices.tolist() for e in experiences] == [list(turns) for turns in cuts]
    assert [e.raw_rewards.tolist() for e in experiences] == [[float(t) for t in turns] for turns in cuts]
    assert [e.turn_rewards.tolist() for e in experiences] == [[t - 0.25 * (t % 2) for t in turns] for turns in cuts]
    assert all(e.segment is s for e, s in zip(experiences, trajectory.segments, strict=True))
    assert [e.is_last for e in experiences] == [False] * (len(cuts) - 1) + [True]
    assert [e.id.segment_index for e in experiences] == list(range(len(cuts)))


def test_the_oldest_version_counts() -> None:
    experiences = split_trajectory(make_trajectory(((0, 1), (2,)), versions=[3, 2, 4]))
    assert [e.policy_version for e in experiences] == [2, 4]


@pytest.mark.parametrize("reason", StopReason)
def test_failed_trajectories_are_left_out_and_budgets_truncate(reason: StopReason) -> None:
    ended, whole = make_trajectory(stop_reason=reason), make_trajectory(sibling=1)
    experiences = build_experiences([Group(task=whole.task, trajectories=(ended, whole))])
    assert [e.id.trajectory.sibling for e in experiences] == ([1] if reason.is_error else [0, 1])
    if not reason.is_error:
        assert experiences[0].is_truncated is (reason is not StopReason.TERMINATED)


def test_a_trajectory_without_tokens_gives_nothing() -> None:
    empty = replace(make_trajectory(), segments=(), turns=(), stop_reason=StopReason.CONTEXT_OVERFLOW)
    assert build_experiences([Group(task=empty.task, trajectories=(empty,))]) == []


def test_turns_that_are_not_in_their_segment_are_refused() -> None:
    trajectory = make_trajectory(((0,), (1,)))
    swapped = tuple(replace(turn, segment_index=1 - turn.segment_index) for turn in trajectory.turns)
    with pytest.raises(ValueError, match="turn_indices"):
        split_trajectory(replace(trajectory, turns=swapped))


def test_no_token_is_touched() -> None:
    trajectory = make_trajectory(((0, 1), (2,)))
    tokens = np.concatenate([s.token_ids for s in trajectory.segments])
    built = build_experiences([Group(task=trajectory.task, trajectories=(trajectory,))])
    assert np.array_equal(np.concatenate([e.segment.token_ids for e in built]), tokens)


def test_an_observation_with_half_a_surrogate_pair_has_a_fingerprint() -> None:
    trajectory = make_trajectory(((0, 1),))
    turns = tuple(replace(turn, observation="\ud83d" * turn.index) for turn in trajectory.turns)
    (experience,) = split_trajectory(replace(trajectory, turns=turns))
    assert len(set(experience.turn_states.tolist())) == 2

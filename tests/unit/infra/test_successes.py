"""Success is what somebody said: shares over those that know, and no guesses."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.errors import RewardError
from turnwise.infra.untrusted import format_success_rate, parse_success, success_flags, success_rate
from turnwise.types import StopReason, Task, Trajectory, TrajectoryId

DONE, BROKEN, CUT = StopReason.TERMINATED, StopReason.WORKFLOW_ERROR, StopReason.MAX_TURNS


def played(*ends: tuple[bool | None, StopReason]) -> list[Trajectory]:
    task = Task(tag="words", seed=1)
    return [
        Trajectory(
            id=TrajectoryId(0, task.id, n), task=task, segments=(), turns=(), stop_reason=reason, is_success=said
        )
        for n, (said, reason) in enumerate(ends)
    ]


def test_where_nobody_says_anything_nothing_is_known_however_episodes_ended() -> None:
    said = success_flags(played((None, DONE), (None, BROKEN), (None, CUT)))
    assert said == [None, None, None]
    assert success_rate(said) is None
    assert success_rate([]) is None


def test_where_anybody_says_it_who_failed_or_was_cut_off_before_is_no_success() -> None:
    said = success_flags(played((True, DONE), (None, BROKEN), (None, CUT), (None, DONE), (True, CUT)))
    assert said == [True, False, False, None, True]
    assert success_rate(said) == 0.5


def test_only_truth_values_are_taken_for_an_answer() -> None:
    assert [parse_success(given, "") for given in (None, True, np.False_)] == [None, True, False]
    for given in ("no", 1, 0.0, np.ones(2)):
        with pytest.raises(RewardError, match=r"its word is .*; expected True, False, or None"):
            parse_success(given, "its word is")


def test_what_nobody_knows_is_shown_as_unknown() -> None:
    assert (format_success_rate(None), format_success_rate(0.125, ".1%"), format_success_rate(0.0)) == (
        "unknown",
        "12.5%",
        "0%",
    )

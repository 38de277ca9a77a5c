"""Success is what somebody said: shares over those that know, and no guesses."""

from __future__ import annotations

import numpy as np
import pytest

from turnwise.errors import RewardError
from turnwise.infra.untrusted import read_success, share_of, show_success, tell_successes
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
    said = tell_successes(played((None, DONE), (None, BROKEN), (None, CUT)))
    assert said == [None, None, None]
    assert share_of(said) is None
    assert share_of([]) is None


def test_where_anybody_says_it_who_failed_or_was_cut_off_before_is_no_success() -> None:
    said = tell_successes(played((True, DONE), (None, BROKEN), (None, CUT), (None, DONE), (True, CUT)))
    assert said == [True, False, False, None, True]
    assert share_of(said) == 0.5


def test_only_truth_values_are_taken_for_an_answer() -> None:
    assert [read_success(given, "") for given in (None, True, np.False_)] == [None, True, False]
    for given in ("no", 1, 0.0, np.ones(2)):
        with pytest.raises(RewardError, match=r"its word is .*; expected True, False, or None"):
            read_success(given, "its word is")


def test_what_nobody_knows_is_shown_as_unknown() -> None:
    assert (show_success(None), show_success(0.125, ".1%"), show_success(0.0)) == ("unknown", "12.5%", "0%")

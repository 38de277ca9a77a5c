"""Failures are counted by cause, whatever the calls were about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from turnwise.report.metrics import OTHER, cause_of, count_failures
from turnwise.types import Group, StopReason, Trajectory

Failed = Callable[..., list[Group]]


@pytest.fixture
def failed(make_trajectory: Callable[..., Trajectory]) -> Failed:
    def make(*causes: str) -> list[Group]:
        plays = [replace(make_trajectory(), stop_reason=StopReason.ENV_ERROR, failure=cause) for cause in causes]
        return [Group(task=plays[0].task, trajectories=(make_trajectory(), *plays))]

    return make


def test_arguments_do_not_make_another_cause(failed: Failed) -> None:
    counts = count_failures(failed("Lake.step('up') failed: KeyError: 1", "Lake.step('a\nb') failed: KeyError: 1"), {})
    assert counts == {"Lake.step failed: KeyError: 1": 2}


def test_counts_go_on_and_successes_do_not_count(failed: Failed) -> None:
    before = {"Lake.reset failed: OSError": 3}
    assert count_failures(failed("Lake.reset(seed=1) failed: OSError"), before) == {"Lake.reset failed: OSError": 4}
    assert before == {"Lake.reset failed: OSError": 3}


def test_causes_without_end_are_put_together(failed: Failed) -> None:
    counts = count_failures(failed(*(f"error {number}" for number in range(30))), {})
    assert sum(counts.values()) == 30
    assert counts[OTHER] == 10


def test_a_failure_without_words_and_one_with_too_many() -> None:
    assert cause_of("") == "no reason given"
    assert len(cause_of("x" * 1000)) == 200


def test_brackets_of_what_was_said_stay() -> None:
    """Only the arguments of the call that failed differ from episode to episode."""
    assert cause_of("Env.step('a (b)') failed: ValueError: no (such) thing (1)") == (
        "Env.step failed: ValueError: no (such) thing (1)"
    )
    assert cause_of("the episode took longer (3 s)") == "the episode took longer (3 s)"

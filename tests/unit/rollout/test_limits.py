"""Budgets, in the order that `rollout/episode.py` documents."""

from __future__ import annotations

import pytest

from turnwise.rollout.episode import Limits
from turnwise.types import StepResult, StopReason


def result(*, terminated: bool = False, truncated: bool = False) -> StepResult:
    return StepResult(text="", reward=0.0, terminated=terminated, truncated=truncated, info={})


@pytest.mark.parametrize(
    ("last", "num_actions", "num_turns", "reason"),
    [
        (result(), 1, 1, None),
        (None, 0, 1, None),
        (result(terminated=True), 1, 1, StopReason.TERMINATED),
        (result(truncated=True), 1, 1, StopReason.ENV_TRUNCATED),
        (result(terminated=True, truncated=True), 1, 1, StopReason.TERMINATED),
        (result(terminated=True), 4, 3, StopReason.TERMINATED),
        (result(truncated=True), 4, 3, StopReason.ENV_TRUNCATED),
        (result(), 4, 1, StopReason.MAX_ACTIONS),
        (result(), 4, 3, StopReason.MAX_ACTIONS),
        (result(), 3, 3, StopReason.MAX_TURNS),
        (None, 0, 3, StopReason.MAX_TURNS),
    ],
)
def test_first_cause_that_holds(
    last: StepResult | None, num_actions: int, num_turns: int, reason: StopReason | None
) -> None:
    limits = Limits(max_turns=3, max_actions=4, max_actions_per_turn=2)
    assert limits.find_stop(last, num_actions=num_actions, num_turns=num_turns) is reason


def test_without_a_budget_of_actions_only_turns_count() -> None:
    limits = Limits(max_turns=3)
    assert limits.find_stop(result(), num_actions=1000, num_turns=2) is None


@pytest.mark.parametrize(
    ("limits", "num_actions", "num_turns", "left"),
    [
        (Limits(max_turns=5), 0, 0, 5),
        (Limits(max_turns=5, max_actions_per_turn=3), 4, 2, 9),
        (Limits(max_turns=5, max_actions_per_turn=3, max_actions=6), 4, 2, 2),
        (Limits(max_turns=5, max_actions_per_turn=3, max_actions=6), 6, 2, 0),
        (Limits(max_turns=5, max_actions_per_turn=3), 15, 5, 0),
    ],
)
def test_actions_left(limits: Limits, num_actions: int, num_turns: int, left: int) -> None:
    assert limits.actions_left(num_actions, num_turns) == left


@pytest.mark.parametrize("reason", StopReason)
def test_only_budgets_truncate(reason: StopReason) -> None:
    budgets = (StopReason.ENV_TRUNCATED, StopReason.MAX_ACTIONS, StopReason.MAX_TURNS, StopReason.CONTEXT_OVERFLOW)
    is_error = reason not in (*budgets, StopReason.TERMINATED)
    assert reason.is_error is is_error
    assert reason.is_truncated is (not is_error and reason is not StopReason.TERMINATED)

"""The actions of one answer in a world: played in order within a budget, and what the turn then says of itself.

Used by everything that plays environments turn by turn, so that a turn means the same however an episode is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import step_env
from turnwise.types import Info, StepResult


def play_actions(env: BaseEnv, actions: Sequence[str], *, max_actions: int | None) -> Iterator[StepResult]:
    """The world's answers one by one, until the actions, the budget or the episode end."""
    for action in actions[:max_actions]:
        result = step_env(env, action)
        yield result
        if result.done:
            break


def is_invalid_turn(results: Sequence[StepResult], *, is_well_formed: bool) -> bool:
    """Whether it costs the penalty: the answer had the wrong format, or an action that the world does not know."""
    return not is_well_formed or any(not result.info.get("action_is_valid", True) for result in results)


def info_of_turn(results: Sequence[StepResult]) -> Info:
    """What the world said beside the last reward; a turn without an action did nothing."""
    return results[-1].info if results else {"action_is_valid": False, "action_is_effective": False}


def is_successful_turn(results: Sequence[StepResult]) -> bool:
    return bool(results) and bool(results[-1].info.get("success", False))

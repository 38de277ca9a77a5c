"""Rewards as a user's function sees fit: `reward.shaping`, turn by turn, on top of the raw ones.

In come finished trajectories; out come the same ones, with what is added to the raw reward of each turn beside it. The
raw rewards stay. A function that fails, or returns no number, makes a failure of its own episode: data, not an
exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import SupportsFloat, TypeAlias

from turnwise.errors import RewardError
from turnwise.infra.untrusted import read_reward, tell_error
from turnwise.types import Info, Metrics, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One turn as `reward.shaping` sees it, when its episode is over."""

    tag: str
    """Which environment."""
    number: int
    """Counted from 0."""
    is_last: bool
    observation: str
    response: str
    """The whole reply."""
    actions: tuple[str, ...]
    reward: float
    """Raw."""
    is_valid: bool
    is_effective: bool
    is_success: bool | None
    """Whether the episode succeeded with this turn, the last; None: nobody said. False in all before it."""
    metrics: Metrics
    info: Info


Shaping: TypeAlias = Callable[[PlayedTurn], SupportsFloat]
"""The reward that is learnt from, in place of the raw one."""


def shape_rewards(trajectories: Sequence[Trajectory], shaping: Shaping) -> list[Trajectory]:
    """The trajectories in the same order; those that failed are left alone."""
    return [t if t.stop_reason.is_error else _shape(t, shaping) for t in trajectories]


def _shape(trajectory: Trajectory, shaping: Shaping) -> Trajectory:
    try:
        return replace(trajectory, turns=tuple(_shaped_turns(trajectory, shaping)))
    except RewardError as error:
        return fail(trajectory, f"reward.shaping: {error}")


def fail(trajectory: Trajectory, failure: str) -> Trajectory:
    """The same episode where its rewards cannot be told; whether it would have said if it succeeded stays as it is."""
    is_success = None if trajectory.is_success is None else False
    return replace(trajectory, stop_reason=StopReason.ENV_ERROR, failure=failure, is_success=is_success)


def _shaped_turns(trajectory: Trajectory, shaping: Shaping) -> Iterator[Turn]:
    for turn in trajectory.turns:
        is_last = turn is trajectory.turns[-1]
        played = PlayedTurn(
            tag=trajectory.task.tag,
            number=turn.index,
            is_last=is_last,
            observation=turn.observation,
            response=turn.response_text,
            actions=turn.actions,
            reward=turn.reward,
            is_valid=turn.is_valid,
            is_effective=turn.is_effective,
            is_success=trajectory.is_success if is_last else False,
            metrics=turn.metrics,
            info=turn.info,
        )
        yield replace(turn, shaping=_ask(shaping, played) - turn.reward)


def _ask(shaping: Shaping, played: PlayedTurn) -> float:
    name = getattr(shaping, "__name__", repr(shaping))
    try:
        given: object = shaping(played)
    except Exception as error:
        raise RewardError(f"{name} failed at turn {played.number}: {tell_error(error)}") from error
    return read_reward(given, f"{name}, at turn {played.number}, returned")

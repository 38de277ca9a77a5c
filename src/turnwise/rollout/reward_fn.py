"""Rewards from a function over all that was played at once, in place of those of the world.

In: groups, and the user's `reward_fn(trajectories)`. Out: the same groups with its numbers as rewards; what the world
gave stays on each turn as the metric `env_reward`. Episodes that failed are left alone.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, SupportsFloat, TypeAlias

from turnwise.errors import RewardError
from turnwise.infra.untrusted import read_reward
from turnwise.types import Group, Trajectory

RewardFn: TypeAlias = Callable[[list[Trajectory]], Sequence[Any]]
"""One score for each trajectory: a number for its end, or a list with a number for each of its turns."""


def score_groups(groups: Sequence[Group], reward_fn: RewardFn) -> list[Group]:
    """All episodes of a rollout, greedy ones included, scored in one call."""
    plays = [play for group in groups for play in _plays(group) if play.turns and not play.stop_reason.is_error]
    if not plays:
        return list(groups)
    scores = reward_fn(plays)
    if not hasattr(scores, "__len__") or len(scores) != len(plays):
        raise RewardError(
            f"reward_fn returned {reprlib.repr(scores)}; expected one score for each of {len(plays)} trajectories."
        )
    done = {id(play): _with_score(play, score) for play, score in zip(plays, scores, strict=True)}
    return [
        replace(
            group,
            trajectories=tuple(done.get(id(play), play) for play in group.trajectories),
            greedy=done.get(id(group.greedy), group.greedy),
        )
        for group in groups
    ]


def _plays(group: Group) -> Iterator[Trajectory]:
    yield from group.trajectories
    if group.greedy is not None:
        yield group.greedy


def _with_score(play: Trajectory, score: object) -> Trajectory:
    num_turns = len(play.turns)
    given = [*[0.0] * (num_turns - 1), score] if isinstance(score, SupportsFloat) else score
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != num_turns:
        raise RewardError(
            f"reward_fn returned {reprlib.repr(score)} for {play.id}; expected a number, or one for each of its "
            f"{num_turns} turns."
        )
    rewards = [read_reward(one, f"reward_fn, for {play.id}, returned") for one in given]
    return replace(
        play,
        turns=tuple(
            replace(turn, reward=reward, metrics={**turn.metrics, "env_reward": turn.reward})
            for turn, reward in zip(play.turns, rewards, strict=True)
        ),
    )

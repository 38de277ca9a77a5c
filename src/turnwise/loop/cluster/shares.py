"""What is handed to an explorer and what comes back, and how the tasks of a rollout are dealt out.

A share is some tasks of one rollout with all their siblings. Whoever plays it, the episodes have the same names and
hence the same dice; so what a lost explorer has not finished can be handed to any other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

from turnwise.protocols import Weights
from turnwise.types import FloatArray, Group, IntArray, Task, Trajectory, TrajectoryId

Kind = Literal["train", "greedy", "eval"]
"""How tasks are played: with siblings and sampled; once and greedily; or as an evaluation does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one explorer plays of a rollout."""

    number: int
    """Of all shares of a run, so that one can be stopped."""
    kind: Kind
    rollout: int
    tasks: tuple[Task, ...]
    known: Mapping[TrajectoryId, Trajectory] = field(default_factory=dict[TrajectoryId, Trajectory])
    """Episodes that were played already, by somebody who is gone; they are not played again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an explorer says while it plays a share: episodes as they end, and in the end the groups."""

    episodes: tuple[Trajectory, ...] = ()
    """Before any judge has seen them."""
    groups: tuple[Group, ...] | None = None
    """With what they are worth; None until all are there."""
    env_seconds: float = 0.0
    """Spent in environments since this was last told."""


class Player(Protocol):
    """An explorer, wherever it is. Every call raises LostError once it is gone."""

    name: str

    def play(self, share: Share) -> AsyncGenerator[Told, None]:
        """Whoever stops listening stops the play."""
        ...

    async def load(self, weights: Weights, policy_version: int) -> None:
        """Return when its engine serves these weights; WeightsLostError where they are gone."""
        ...

    async def score(self, token_ids: IntArray) -> Sequence[FloatArray]:
        """What the copies of the weights that its engine holds make of a text; see `ScoringEngine`."""
        ...

    async def leave(self) -> None:
        """Nothing more is asked of it; its place becomes free."""
        ...


def deal(tasks: Sequence[Task], num_players: int) -> list[tuple[Task, ...]]:
    """As even as it goes, in their order; never an empty share."""
    num_shares = min(num_players, len(tasks))
    bounds = [number * len(tasks) // num_shares for number in range(num_shares + 1)] if num_shares else [0]
    return [tuple(tasks[a:b]) for a, b in pairwise(bounds)]

"""Generalised advantage estimation over sampled tokens (Schulman et al., arXiv 1506.02438).

The chain runs from sampled token to sampled token: prompts and observations in between are passed over unchanged,
neither decaying it nor adding their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.credit.layout import (
    Floats,
    PlayedTokens,
    TurnLayout,
    make_samples,
    play_back,
    require_values,
    scan_back,
    shift_back,
    whiten,
)
from turnwise.types import Annotations, Experience, Sample


def estimate_gae(
    layout: TurnLayout, token_rewards: Floats, values: Floats, bootstrap: Floats, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Advantages and returns per sampled token; `bootstrap` is the value behind each trajectory's end."""
    starts = layout.trajectory_token_starts
    deltas = token_rewards + gamma * shift_back(values, starts, bootstrap) - values
    advantages = scan_back(deltas, starts, gamma * lam)
    return advantages, advantages + values


Truncation = Literal["bootstrap", "end"]


def values_behind(played: PlayedTokens, values: Floats, truncation: Truncation) -> Floats:
    """[trajectories] what is still to come behind the end: 0 where the world ended it.

    Where a budget did, the critic's last word stands for the rest, unless the budget counts as part of the task.
    """
    last = values[played.layout.trajectory_token_starts[1:] - 1]
    return np.where(played.is_truncated & (truncation == "bootstrap"), last, 0.0)


class GaeParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda: 0 trusts the critic, 1 trusts the rewards."""
    truncation: Truncation = "bootstrap"
    """What a budget's end means: the state still has its value, or the episode is over like any other."""
    whiten: bool = True
    """Scale advantages to mean 0 and variance 1 over the batch."""


class Gae:
    """`credit: {type: gae}`"""

    Params = GaeParams
    needs_values = True
    needs_groups = False
    needs_greedy = False

    def __init__(self, params: GaeParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        values = played.gather(require_values(annotations, "gae"))
        advantages, returns = estimate_gae(
            played.layout,
            played.token_rewards,
            values,
            values_behind(played, values, self.params.truncation),
            gamma=self.params.gamma,
            lam=self.params.lam,
        )
        advantages = whiten(advantages) if self.params.whiten else advantages
        return make_samples(played, advantages, returns, annotations)


class BiLevelGaeParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from token to token inside a turn."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda inside a turn."""
    high_level_gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn."""
    high_level_lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda from turn to turn."""
    turn_value_at: Literal["last", "first"] = "last"
    """Which token's value speaks for a turn: its last one, or its first (the state before anything was said)."""
    truncation: Truncation = "bootstrap"
    """What a budget's end means: the state still has its value, or the episode is over like any other."""
    whiten: bool = True
    """Scale advantages to mean 0 and variance 1 over the batch."""


def estimate_bi_level_gae(
    layout: TurnLayout, token_rewards: Floats, values: Floats, bootstrap: Floats, params: BiLevelGaeParams
) -> tuple[Floats, Floats]:
    """Advantages and returns per sampled token. A turn's reward is the sum over its tokens."""
    turn_rewards = layout.sum_tokens(token_rewards)
    turn_values = values[layout.turn_last if params.turn_value_at == "last" else layout.turn_first]
    following = shift_back(turn_values, layout.trajectory_starts, bootstrap)
    turn_deltas = turn_rewards + params.high_level_gamma * following - turn_values
    decay = params.high_level_gamma * params.high_level_lam
    turn_returns = scan_back(turn_deltas, layout.trajectory_starts, decay) + turn_values

    rewards = token_rewards.copy()
    paid_before_last = turn_rewards - token_rewards[layout.turn_last]
    rewards[layout.turn_last] = turn_returns - paid_before_last
    nothing = np.zeros(len(turn_returns))
    deltas = rewards + params.gamma * shift_back(values, layout.turn_starts, nothing) - values
    advantages = scan_back(deltas, layout.turn_starts, params.gamma * params.lam)
    return advantages, advantages + values


class BiLevelGae:
    """`credit: {type: bi_level_gae}`"""

    Params = BiLevelGaeParams
    needs_values = True
    needs_groups = False
    needs_greedy = False

    def __init__(self, params: BiLevelGaeParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        values = played.gather(require_values(annotations, "bi_level_gae"))
        behind = values_behind(played, values, self.params.truncation)
        advantages, returns = estimate_bi_level_gae(played.layout, played.token_rewards, values, behind, self.params)
        advantages = whiten(advantages) if self.params.whiten else advantages
        return make_samples(played, advantages, returns, annotations)


def estimate_turn_gae(
    layout: TurnLayout, turn_rewards: Floats, turn_values: Floats, behind: Floats, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """[turns] advantages and returns; `behind` is the value behind each trajectory's end."""
    following = shift_back(turn_values, layout.trajectory_starts, behind)
    advantages = scan_back(turn_rewards + gamma * following - turn_values, layout.trajectory_starts, gamma * lam)
    return advantages, advantages + turn_values


class TurnGaeParams(Settings):
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda from turn to turn."""
    truncation: Truncation = "bootstrap"
    """What a budget's end means: the state still has its value, or the episode is over like any other."""
    whiten: bool = True
    """Scale advantages to mean 0 and variance 1 over the batch's tokens."""


class TurnGae:
    """`credit: {type: turn_gae}`"""

    Params = TurnGaeParams
    needs_values = True
    needs_groups = False
    needs_greedy = False

    def __init__(self, params: TurnGaeParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        values = played.gather(require_values(annotations, "turn_gae"))
        advantages, returns = estimate_turn_gae(
            played.layout,
            played.turn_rewards,
            values[played.layout.turn_first],
            values_behind(played, values, self.params.truncation),
            gamma=self.params.gamma,
            lam=self.params.lam,
        )
        per_token = played.layout.turns_to_tokens(advantages)
        per_token = whiten(per_token) if self.params.whiten else per_token
        return make_samples(played, per_token, played.layout.turns_to_tokens(returns), annotations)

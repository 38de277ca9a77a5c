"""Bi-level GAE: first over turns, then over the tokens inside each turn.

A turn pass spreads the environment's rewards over turns; the return it gives a turn becomes the reward of the turn's
last token, and a token pass that starts anew in every turn spreads it inside. Turns are given, never guessed from
rewards, so a turn that earned nothing is still a turn.

Penalties of single tokens count on both levels and once. For the turn pass they are part of the turn's reward. In the
token pass each is a reward where it was paid, and the last token gets the turn's return less what the tokens before it
paid. With gamma and lambda 1 the first token then still sees exactly the turn's return, and a later token is not
charged for what an earlier one cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.credit.gae import Truncation, values_behind
from turnwise.credit.layout import Floats, TurnLayout, play_back, scan_back, shift_back, whiten
from turnwise.credit.samples import make_samples, require_values
from turnwise.types import Annotations, Experience, Sample


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

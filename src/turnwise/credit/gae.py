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
from turnwise.credit.layout import Floats, PlayedTokens, TurnLayout, play_back, scan_back, shift_back, whiten
from turnwise.credit.samples import make_samples, require_values
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

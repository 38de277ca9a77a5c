"""GAE over turns alone: every token of a turn gets the turn's advantage.

The critic speaks for a turn with its value before the first token, so it need not learn values inside a reply.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.credit.gae import Truncation, values_behind
from turnwise.credit.layout import Floats, TurnLayout, play_back, scan_back, shift_back, whiten
from turnwise.credit.samples import make_samples, require_values
from turnwise.types import Annotations, Experience, Sample


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

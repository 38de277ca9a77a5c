"""REINFORCE and REINFORCE++: rewards to come, without siblings and without a critic."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.credit.layout import Floats, TurnLayout, play_back, scan_back, whiten
from turnwise.credit.samples import make_samples
from turnwise.types import Annotations, Experience, Sample


def estimate_returns(layout: TurnLayout, token_rewards: Floats, gamma: float) -> Floats:
    """The discounted sum of rewards from each sampled token on; observations in between do not discount."""
    return scan_back(token_rewards, layout.trajectory_token_starts, gamma)


class _ReturnRule:
    """The rewards to come as advantage."""

    needs_values = False
    needs_groups = False
    needs_greedy = False

    def __init__(self, gamma: float, *, should_whiten: bool) -> None:
        self._gamma = gamma
        self._should_whiten = should_whiten

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        returns = estimate_returns(played.layout, played.token_rewards, self._gamma)
        return make_samples(played, whiten(returns) if self._should_whiten else returns, returns, annotations)


class ReinforceParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""


class Reinforce(_ReturnRule):
    """`credit: {type: reinforce}`: the rewards to come, as they are."""

    Params = ReinforceParams

    def __init__(self, params: ReinforceParams) -> None:
        super().__init__(params.gamma, should_whiten=False)


class ReinforcePpParams(Settings):
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""


class ReinforcePp(_ReturnRule):
    """`credit: {type: reinforce_pp}`: the rewards to come, whitened over the batch (arXiv 2501.03262)."""

    Params = ReinforcePpParams

    def __init__(self, params: ReinforcePpParams) -> None:
        super().__init__(params.gamma, should_whiten=True)

"""GiGPO: a whole play against its siblings, and each turn against the turns played from the same state.

In: experiences whose turns carry the fingerprint of their state. Out: samples with one advantage per turn. Two states
are the same only inside one group: equal fingerprints of different tasks are never compared (arXiv 2505.10978).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.credit.group import EPSILON, estimate_grpo, group_mean_std
from turnwise.credit.layout import Floats, Ints, TurnLayout, number_densely, play_back, scan_back
from turnwise.credit.samples import make_samples
from turnwise.types import Annotations, Experience, Sample


class GigpoParams(Settings):
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn, for the rewards that turns of one state are compared by."""
    step_weight: float = Field(default=1.0, ge=0)
    """How much a turn's advantage over its state counts beside the play's advantage over its siblings."""
    scale_by_std: bool = False
    """Divide both advantages by the spread of what they are compared with."""


def estimate_gigpo(
    layout: TurnLayout, turn_rewards: Floats, turn_states: NDArray[np.uint64], groups: Ints, params: GigpoParams
) -> Floats:
    """[turns] the advantage of the play, plus that of the turn among all turns of its group and state."""
    num_turns = np.diff(layout.trajectory_starts)
    plays = estimate_grpo(layout.sum_turns(turn_rewards), groups, scale_by_std=params.scale_by_std)
    returns = scan_back(turn_rewards, layout.trajectory_starts, params.gamma)
    places = number_densely(zip(np.repeat(groups, num_turns).tolist(), turn_states.tolist(), strict=True))
    return np.repeat(plays, num_turns) + params.step_weight * _compare(returns, places, params.scale_by_std)


def _compare(returns: Floats, places: Ints, scale_by_std: bool) -> Floats:
    """Against the mean of the same place. Met once, a place says nothing; its mean makes that 0 by itself."""
    means, stds, _ = group_mean_std(returns, places)
    centred = returns - means
    return centred / (stds + EPSILON) if scale_by_std else centred


class Gigpo:
    """`credit: {type: gigpo}`"""

    Params = GigpoParams
    needs_values = False
    needs_groups = True
    needs_greedy = False

    def __init__(self, params: GigpoParams) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        per_turn = estimate_gigpo(
            played.layout, played.turn_rewards, played.turn_states, played.group_of_trajectory, self.params
        )
        per_token = played.layout.turns_to_tokens(per_turn)
        return make_samples(played, per_token, per_token, annotations)

"""ReMax: the rewards to come against what a greedy play of the same task earned (arXiv 2310.10505).

In: experiences with the return of the greedy play. Out: samples with one advantage per token. The greedy play is a
baseline and nothing else; how it was played is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.config.settings import Settings
from turnwise.credit.layout import Floats, TurnLayout, play_back
from turnwise.credit.reinforce import estimate_returns
from turnwise.credit.samples import make_samples
from turnwise.types import Annotations, Experience, Sample


def estimate_remax(layout: TurnLayout, returns: Floats, greedy_returns: Floats) -> Floats:
    """[tokens] the rewards to come minus the greedy return; where that is NaN there is nothing to learn from: 0."""
    baseline = layout.trajectories_to_tokens(greedy_returns)
    return np.where(np.isnan(baseline), 0.0, returns - baseline)


class Remax:
    """`credit: {type: remax}`"""

    Params = Settings
    needs_values = False
    needs_groups = False
    needs_greedy = True

    def __init__(self, params: Settings) -> None:
        self.params = params

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        played = play_back(experiences, annotations)
        returns = estimate_returns(played.layout, played.token_rewards, gamma=1.0)
        return make_samples(played, estimate_remax(played.layout, returns, played.greedy_returns), returns, annotations)

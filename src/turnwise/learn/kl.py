"""KL in the reward: the price, token by token, of leaving the reference; fixed, or steered towards a target.

In: log-probs at sampling time and the reference's. Out: penalties for credit. It knows nothing of losses or weights.
"""

from __future__ import annotations

import numpy as np
import torch

from turnwise.config.schema_learn import KlReward
from turnwise.learn.losses import estimate_kl
from turnwise.types import BoolArray, FloatArray

_MAX_CHANGE = 0.2
"""The largest relative error that moves an adaptive price (Ziegler et al., arXiv 1909.08593)."""


class KlPrice:
    """What a nat of distance costs now."""

    def __init__(self, settings: KlReward) -> None:
        self._settings = settings
        self.coef = settings.coef

    def charge(
        self,
        behavior_logprobs: FloatArray,
        reference_logprobs: FloatArray,
        loss_mask: BoolArray,
        *,
        num_trajectories: int,
    ) -> tuple[FloatArray, float]:
        """Penalties per token at the price of this moment, and the mean distance; the price adapts afterwards."""
        behavior, reference = torch.as_tensor(behavior_logprobs), torch.as_tensor(reference_logprobs)
        distance = estimate_kl(behavior, reference, self._settings.estimator).numpy() * loss_mask
        penalties = (-self.coef * distance).astype(np.float32)
        mean = float(distance.sum() / max(int(loss_mask.sum()), 1))
        self._adapt(mean, num_trajectories)
        return penalties, mean

    def _adapt(self, mean_distance: float, num_trajectories: int) -> None:
        if self._settings.target is None:
            return
        error = min(max(mean_distance / self._settings.target - 1, -_MAX_CHANGE), _MAX_CHANGE)
        self.coef *= 1 + error * num_trajectories / self._settings.horizon

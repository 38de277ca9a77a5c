"""Pure per-token losses: tensors over the sampled tokens in, one loss per token and what to report out.

They neither average nor know of batches; the trainer weighs tokens over the whole mini-batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from turnwise.config.settings import Settings


class PpoClipParams(Settings):
    type: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio may fall to 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio may rise to 1 + clip_high; larger than clip_low is clip-higher (DAPO, arXiv 2503.14476)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """With a negative advantage the loss is at most this many times it (arXiv 1912.09729); null switches it off."""


class PpoClip:
    """`learn.loss: {type: ppo_clip}`: the clipped surrogate of PPO (arXiv 1707.06347)."""

    Params = PpoClipParams

    def __init__(self, params: PpoClipParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # A ratio beyond e^20 is a bug elsewhere; bounded, it shows in the metrics instead of overflowing.
        ratio = (policy_logprobs - behavior_logprobs).clamp(-20, 20).exp()
        clipped = ratio.clamp(1 - self.params.clip_low, 1 + self.params.clip_high)
        unclipped_loss, clipped_loss = -advantages * ratio, -advantages * clipped
        loss = torch.maximum(unclipped_loss, clipped_loss)
        if self.params.dual_clip is not None:
            bounded = torch.minimum(loss, -advantages * self.params.dual_clip)
            loss = torch.where(advantages < 0, bounded, loss)
        return loss, {"clip_fraction": (clipped_loss > unclipped_loss).float(), "ratio": ratio.detach()}


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error; with `clip`, the worse of the free and the clipped value's error."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


KlEstimator = Literal["k1", "k2", "k3", "abs"]


def estimate_kl(policy_logprobs: Tensor, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimates of KL(policy || reference) from samples of the policy (Schulman's k1, k2, k3)."""
    difference = policy_logprobs - reference_logprobs
    match estimator:
        case "k1":
            return difference
        case "k2":
            return 0.5 * difference.square()
        case "k3":
            return (-difference).exp() - 1 + difference
        case "abs":
            return difference.abs()

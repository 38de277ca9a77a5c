"""Pure per-token losses: tensors over the sampled tokens in, one loss per token and what to report out.

They neither average nor know of batches; the trainer weighs tokens over the whole mini-batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from turnwise.config.sections.learn import KlEstimator
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
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = _ratio(policy_logprobs, behavior_logprobs)
        clipped = ratio.clamp(1 - self.params.clip_low, 1 + self.params.clip_high)
        unclipped_loss, clipped_loss = -advantages * ratio, -advantages * clipped
        loss = torch.maximum(unclipped_loss, clipped_loss)
        if self.params.dual_clip is not None:
            bounded = torch.minimum(loss, -advantages * self.params.dual_clip)
            loss = torch.where(advantages < 0, bounded, loss)
        return loss, {"clip_fraction": (clipped_loss > unclipped_loss).float(), "ratio": ratio.detach()}


class ReinforceLossParams(Settings):
    type: Literal["reinforce"] = "reinforce"


class ReinforceLoss:
    """`learn.loss: {type: reinforce}`: the plain policy gradient, for one pass over fresh data."""

    Params = ReinforceLossParams

    def __init__(self, params: ReinforceLossParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -advantages * policy_logprobs, {"ratio": _ratio(policy_logprobs.detach(), behavior_logprobs)}


class GspoParams(Settings):
    type: Literal["gspo"] = "gspo"
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The turn's ratio may fall to 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The turn's ratio may rise to 1 + clip_high."""


class Gspo:
    """`learn.loss: {type: gspo}`: one ratio per reply, the geometric mean over its tokens (arXiv 2507.18071).

    The sequence of the paper is a reply to a prompt, which here is a turn: it never spans two rows.
    """

    Params = GspoParams

    def __init__(self, params: GspoParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moved = _mean_over_turns((policy_logprobs - behavior_logprobs).detach(), turns)
        # The value is the turn's ratio; the gradient reaches each token through its own log-prob.
        ratio = (moved.clamp(-20, 20)).exp() * (policy_logprobs - policy_logprobs.detach()).exp()
        clipped = ratio.clamp(1 - self.params.clip_low, 1 + self.params.clip_high)
        loss = torch.maximum(-advantages * ratio, -advantages * clipped)
        return loss, {
            "clip_fraction": (-advantages * clipped > -advantages * ratio).float(),
            "ratio": ratio.detach(),
        }


class CispoParams(Settings):
    type: Literal["cispo"] = "cispo"
    clip_low: float = Field(default=1.0, gt=0)
    """The weight may fall to 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The weight may rise to 1 + clip_high."""


class Cispo:
    """`learn.loss: {type: cispo}`: a policy gradient whose weights are clipped, and no token's gradient is lost."""

    Params = CispoParams

    def __init__(self, params: CispoParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = _ratio(policy_logprobs.detach(), behavior_logprobs)
        weight = ratio.clamp(1 - self.params.clip_low, 1 + self.params.clip_high)
        return -advantages * weight * policy_logprobs, {"clip_fraction": (weight != ratio).float(), "ratio": ratio}


class SapoParams(Settings):
    type: Literal["sapo"] = "sapo"
    tau_positive: PositiveFloat = 1.0
    """How sharply the gate closes for good tokens."""
    tau_negative: PositiveFloat = 1.05
    """How sharply the gate closes for bad tokens."""


class Sapo:
    """`learn.loss: {type: sapo}`: a smooth gate 4 / tau * sigmoid(tau * (ratio - 1)) in place of the clip.

    The gate itself is differentiated, so a token far off the policy is damped and not amplified.
    """

    Params = SapoParams

    def __init__(self, params: SapoParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = _ratio(policy_logprobs, behavior_logprobs)
        positive = torch.full_like(ratio, self.params.tau_positive)
        tau = torch.where(advantages > 0, positive, torch.full_like(ratio, self.params.tau_negative))
        gate = 4 / tau * torch.sigmoid(tau * (ratio - 1))
        return -advantages * gate, {"ratio": ratio.detach()}


class OpmdLossParams(Settings):
    type: Literal["opmd"] = "opmd"
    tau: float = Field(default=0.0, ge=0)
    """Strength of the pull to the sampling policy; divides the gradient by 1 + tau."""


class OpmdLoss:
    """`learn.loss: {type: opmd}`: no ratio at all, which tolerates stale samples."""

    Params = OpmdLossParams

    def __init__(self, params: OpmdLossParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = -advantages * policy_logprobs / (1 + self.params.tau)
        return loss, {"ratio": _ratio(policy_logprobs.detach(), behavior_logprobs)}


class SftParams(Settings):
    type: Literal["sft"] = "sft"


class Sft:
    """`learn.loss: {type: sft}`: the likelihood of what was sampled, whatever it earned."""

    Params = SftParams

    def __init__(self, params: SftParams) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -policy_logprobs, {}


def _ratio(policy_logprobs: Tensor, behavior_logprobs: Tensor) -> Tensor:
    # A ratio beyond e^20 is a bug elsewhere; bounded, it shows in the metrics instead of overflowing.
    return (policy_logprobs - behavior_logprobs).clamp(-20, 20).exp()


def _mean_over_turns(per_token: Tensor, turns: Tensor) -> Tensor:
    """Each token's value replaced by the mean over its turn; `turns` numbers the turns from 0."""
    num_turns = int(turns.max()) + 1 if len(turns) else 0
    sums = per_token.new_zeros(num_turns).index_add_(0, turns, per_token)
    return (sums / torch.bincount(turns, minlength=num_turns))[turns]


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error; with `clip`, the worse of the free and the clipped value's error."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


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

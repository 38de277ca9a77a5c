"""Pure per-token losses: tensors over the sampled tokens in, one loss per token and what to report out.

They neither average nor know of batches; the trainer weighs tokens over the whole mini-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnwise.config.schema_learn import CispoParams, GspoParams, KlEstimator, OpmdLossParams, PpoClipParams, SapoParams
from turnwise.config.settings import Settings


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


class ReinforceLoss:
    """`learn.loss: {type: reinforce}`: the plain policy gradient, for one pass over fresh data."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
        self.params = params

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -advantages * policy_logprobs, {"ratio": _ratio(policy_logprobs.detach(), behavior_logprobs)}


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


class Sft:
    """`learn.loss: {type: sft}`: the likelihood of what was sampled, whatever it earned."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
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

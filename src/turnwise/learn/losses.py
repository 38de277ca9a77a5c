"""Policy losses per token, each with the reference that the audit compares it with; value loss and KL estimates.

They do not average: the trainer weighs tokens over the whole mini-batch. Tensor methods alone are used, so that
settings can be read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from turnwise.config.kinds import PolicyLoss
from turnwise.config.schema_learn import KlEstimator
from turnwise.types import IntArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]


class PpoClip(PolicyLoss, name="ppo_clip"):
    """The clipped surrogate of PPO (arXiv 1707.06347)."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio may fall to 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio may rise to 1 + clip_high; larger than clip_low is clip-higher (DAPO, arXiv 2503.14476)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """With a negative advantage the loss is at most this many times it (arXiv 1912.09729); null switches it off."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = _ratio(policy_logprobs, behavior_logprobs)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        unclipped_loss, clipped_loss = -advantages * ratio, -advantages * clipped
        loss = unclipped_loss.maximum(clipped_loss)
        if self.dual_clip is not None:
            bounded = loss.minimum(-advantages * self.dual_clip)
            loss = bounded.where(advantages < 0, loss)
        return loss, {"clip_fraction": (clipped_loss > unclipped_loss).float(), "ratio": ratio.detach()}

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        ratio = _reference_ratio(policy, behavior)
        clipped = np.clip(ratio, 1 - self.clip_low, 1 + self.clip_high)
        worse = np.maximum(-advantages * ratio, -advantages * clipped)
        if self.dual_clip is None:
            return worse
        return np.where(advantages < 0, np.minimum(worse, -advantages * self.dual_clip), worse)


class ReinforceLoss(PolicyLoss, name="reinforce"):
    """The plain policy gradient, for one pass over fresh data."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -advantages * policy_logprobs, {"ratio": _ratio(policy_logprobs.detach(), behavior_logprobs)}

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        return -advantages * policy


class Gspo(PolicyLoss, name="gspo"):
    """One ratio per reply, the geometric mean over its tokens (arXiv 2507.18071).

    The sequence of the paper is a reply to a prompt, which here is a turn: it never spans two rows.
    """

    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The turn's ratio may fall to 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The turn's ratio may rise to 1 + clip_high."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        moved = _mean_over_turns((policy_logprobs - behavior_logprobs).detach(), turns)
        # The value is the turn's ratio; the gradient reaches each token through its own log-prob.
        ratio = (moved.clamp(-20, 20)).exp() * (policy_logprobs - policy_logprobs.detach()).exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = (-advantages * ratio).maximum(-advantages * clipped)
        return loss, {
            "clip_fraction": (-advantages * clipped > -advantages * ratio).float(),
            "ratio": ratio.detach(),
        }

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        moved: dict[int, list[float]] = {}
        for difference, turn in zip((policy - behavior).tolist(), turns.tolist(), strict=True):
            moved.setdefault(turn, []).append(difference)
        means = {turn: sum(of_turn) / len(of_turn) for turn, of_turn in moved.items()}
        ratio = np.exp(np.clip([means[turn] for turn in turns.tolist()], -20, 20))
        clipped = np.clip(ratio, 1 - self.clip_low, 1 + self.clip_high)
        return np.maximum(-advantages * ratio, -advantages * clipped)


class Cispo(PolicyLoss, name="cispo"):
    """A policy gradient whose weights are clipped, and no token's gradient is lost."""

    clip_low: float = Field(default=1.0, gt=0)
    """The weight may fall to 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The weight may rise to 1 + clip_high."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = _ratio(policy_logprobs.detach(), behavior_logprobs)
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -advantages * weight * policy_logprobs, {"clip_fraction": (weight != ratio).float(), "ratio": ratio}

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        weight = np.clip(_reference_ratio(policy, behavior), 1 - self.clip_low, 1 + self.clip_high)
        return -advantages * weight * policy


class Sapo(PolicyLoss, name="sapo"):
    """A smooth gate 4 / tau * sigmoid(tau * (ratio - 1)) in place of the clip.

    The gate itself is differentiated, so a token far off the policy is damped and not amplified.
    """

    tau_positive: PositiveFloat = 1.0
    """How sharply the gate closes for good tokens."""
    tau_negative: PositiveFloat = 1.05
    """How sharply the gate closes for bad tokens."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = _ratio(policy_logprobs, behavior_logprobs)
        positive, negative = (ratio.new_full(ratio.shape, tau) for tau in (self.tau_positive, self.tau_negative))
        tau = positive.where(advantages > 0, negative)
        gate = 4 / tau * (tau * (ratio - 1)).sigmoid()
        return -advantages * gate, {"ratio": ratio.detach()}

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        tau = np.where(advantages > 0, self.tau_positive, self.tau_negative)
        # Bounded, because a float64 holds no more: the gate is closed long before.
        exponent = np.minimum(-tau * (_reference_ratio(policy, behavior) - 1), 700.0)
        return -advantages * 4 / (tau * (1 + np.exp(exponent)))


class OpmdLoss(PolicyLoss, name="opmd"):
    """No ratio at all, which tolerates stale samples."""

    tau: float = Field(default=0.0, ge=0)
    """Strength of the pull to the sampling policy; divides the gradient by 1 + tau."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = -advantages * policy_logprobs / (1 + self.tau)
        return loss, {"ratio": _ratio(policy_logprobs.detach(), behavior_logprobs)}

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        return -advantages * policy / (1 + self.tau)


class Sft(PolicyLoss, name="sft"):
    """The likelihood of what was sampled, whatever it earned."""

    def __call__(
        self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, turns: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return -policy_logprobs, {}

    def reference(self, policy: Floats, behavior: Floats, advantages: Floats, turns: IntArray) -> Floats:
        return -policy


def _reference_ratio(policy: Floats, behavior: Floats) -> Floats:
    return np.exp(np.clip(policy - behavior, -20, 20))


def _ratio(policy_logprobs: Tensor, behavior_logprobs: Tensor) -> Tensor:
    # A ratio beyond e^20 is a bug elsewhere; bounded, it shows in the metrics instead of overflowing.
    return (policy_logprobs - behavior_logprobs).clamp(-20, 20).exp()


def _mean_over_turns(per_token: Tensor, turns: Tensor) -> Tensor:
    """Each token's value replaced by the mean over its turn; `turns` numbers the turns from 0."""
    num_turns = int(turns.max()) + 1 if len(turns) else 0
    sums = per_token.new_zeros(num_turns).index_add_(0, turns, per_token)
    return (sums / turns.bincount(minlength=num_turns))[turns]


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Half the squared error; with `clip`, the worse of the free and the clipped value's error."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = loss.maximum((near - returns).square())
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

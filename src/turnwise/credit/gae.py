"""Generalised advantage estimation over sampled tokens (Schulman et al., arXiv 1506.02438).

The chain runs from sampled token to sampled token: prompts and observations in between are passed over unchanged,
neither decaying it nor adding their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from turnwise.config.kinds import AdvantageEstimator
from turnwise.credit.layout import (
    FlatTokens,
    Floats,
    TurnLayout,
    flatten_experiences,
    make_samples,
    require_values,
    scan_back,
    shift_back,
    whiten,
)
from turnwise.credit.reference import TokenTrajectory, discount_with_values
from turnwise.types import Annotations, Experience, FloatArray, Sample


def estimate_gae(
    layout: TurnLayout, token_rewards: Floats, values: Floats, bootstrap: Floats, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """Advantages and returns per sampled token; `bootstrap` is the value behind each trajectory's end."""
    starts = layout.trajectory_token_starts
    deltas = token_rewards + gamma * shift_back(values, starts, bootstrap) - values
    advantages = scan_back(deltas, starts, gamma * lam)
    return advantages, advantages + values


Truncation = Literal["bootstrap", "end"]


def bootstrap_values(flat: FlatTokens, values: Floats, truncation: Truncation) -> Floats:
    """[trajectories] what is still to come behind the end: 0 where the world ended it.

    Where a budget did, the critic's last word stands for the rest, unless the budget counts as part of the task.
    """
    last = values[flat.layout.trajectory_token_starts[1:] - 1]
    return np.where(flat.is_truncated & (truncation == "bootstrap"), last, 0.0)


class _ValueEstimator(AdvantageEstimator):
    """Advantages from the values of a critic: returns minus values, whitened over the batch."""

    needs_values = True
    whitening = "from_returns"

    truncation: Truncation = "bootstrap"
    """What a budget's end means: the state still has its value, or the episode is over like any other."""
    whiten: bool = True
    """Scale advantages to mean 0 and variance 1 over the batch's tokens."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        flat = flatten_experiences(experiences, annotations)
        values = flat.gather(require_values(annotations, self.type))
        advantages, returns = self._estimate(flat, values, bootstrap_values(flat, values, self.truncation))
        return make_samples(flat, whiten(advantages) if self.whiten else advantages, returns, annotations)

    def _estimate(self, flat: FlatTokens, values: Floats, behind: Floats) -> tuple[Floats, Floats]:
        """[tokens] advantages and returns; `behind` is the value behind each trajectory's end."""
        raise NotImplementedError

    def reference(self, trajectories: Sequence[TokenTrajectory]) -> list[list[float]]:
        return [self._reference(t, t.values[-1] if self._continues(t) else 0.0) for t in trajectories]

    def _continues(self, trajectory: TokenTrajectory) -> bool:
        return trajectory.is_truncated and self.truncation == "bootstrap"

    def _reference(self, trajectory: TokenTrajectory, behind: float) -> list[float]:
        raise NotImplementedError

    def value_baseline(self, sample: Sample) -> FloatArray:
        return sample.values[sample.experience.segment.loss_mask]

    def whitens(self) -> bool:
        return self.whiten


class Gae(_ValueEstimator, name="gae"):
    """Generalized advantage estimation from sampled token to sampled token."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from one sampled token to the next."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda: 0 trusts the critic, 1 trusts the rewards."""

    def _estimate(self, flat: FlatTokens, values: Floats, behind: Floats) -> tuple[Floats, Floats]:
        return estimate_gae(flat.layout, flat.token_rewards, values, behind, gamma=self.gamma, lam=self.lam)

    def _reference(self, trajectory: TokenTrajectory, behind: float) -> list[float]:
        return discount_with_values(trajectory.token_rewards(), trajectory.values, behind, self.gamma, self.lam)


class BiLevelGae(_ValueEstimator, name="bi_level_gae"):
    """GAE from turn to turn, then from token to token inside each turn."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from token to token inside a turn."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda inside a turn."""
    high_level_gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn."""
    high_level_lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda from turn to turn."""
    turn_value_at: Literal["last", "first"] = "last"
    """Which token's value speaks for a turn: its last one, or its first (the state before anything was said)."""

    def _estimate(self, flat: FlatTokens, values: Floats, behind: Floats) -> tuple[Floats, Floats]:
        return estimate_bi_level_gae(flat.layout, flat.token_rewards, values, behind, self)

    def _reference(self, trajectory: TokenTrajectory, behind: float) -> list[float]:
        rewards, values = trajectory.token_rewards(), trajectory.values
        tokens = [[t for t, turn in enumerate(trajectory.turns) if turn == k] for k in range(len(trajectory.rewards))]
        which = -1 if self.turn_value_at == "last" else 0
        turn_values = [values[of_turn[which]] for of_turn in tokens]
        turn_rewards = [sum(rewards[t] for t in of_turn) for of_turn in tokens]
        goals = discount_with_values(turn_rewards, turn_values, behind, self.high_level_gamma, self.high_level_lam)
        returns: list[float] = []
        for of_turn, goal in zip(tokens, goals, strict=True):
            paid = [rewards[t] for t in of_turn]
            paid[-1] = goal - sum(paid[:-1])
            returns += discount_with_values(paid, [values[t] for t in of_turn], 0.0, self.gamma, self.lam)
        return returns


def estimate_bi_level_gae(
    layout: TurnLayout, token_rewards: Floats, values: Floats, bootstrap: Floats, params: BiLevelGae
) -> tuple[Floats, Floats]:
    """Advantages and returns per sampled token. A turn's reward is the sum over its tokens."""
    turn_rewards = layout.sum_tokens(token_rewards)
    turn_values = values[layout.turn_last if params.turn_value_at == "last" else layout.turn_first]
    following = shift_back(turn_values, layout.trajectory_starts, bootstrap)
    turn_deltas = turn_rewards + params.high_level_gamma * following - turn_values
    decay = params.high_level_gamma * params.high_level_lam
    turn_returns = scan_back(turn_deltas, layout.trajectory_starts, decay) + turn_values

    rewards = token_rewards.copy()
    paid_before_last = turn_rewards - token_rewards[layout.turn_last]
    rewards[layout.turn_last] = turn_returns - paid_before_last
    nothing = np.zeros(len(turn_returns))
    deltas = rewards + params.gamma * shift_back(values, layout.turn_starts, nothing) - values
    advantages = scan_back(deltas, layout.turn_starts, params.gamma * params.lam)
    return advantages, advantages + values


class TurnGae(_ValueEstimator, name="turn_gae"):
    """GAE from turn to turn; all tokens of a turn share its advantage."""

    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount from turn to turn."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """Lambda from turn to turn."""

    def _estimate(self, flat: FlatTokens, values: Floats, behind: Floats) -> tuple[Floats, Floats]:
        layout, turn_values = flat.layout, values[flat.layout.turn_first]
        per_turn = estimate_turn_gae(layout, flat.turn_rewards, turn_values, behind, gamma=self.gamma, lam=self.lam)
        advantages, returns = map(layout.turns_to_tokens, per_turn)
        return advantages, returns

    def _reference(self, trajectory: TokenTrajectory, behind: float) -> list[float]:
        firsts = [trajectory.values[trajectory.turns.index(turn)] for turn in range(len(trajectory.rewards))]
        returns = discount_with_values(trajectory.turn_rewards(), firsts, behind, self.gamma, self.lam)
        return trajectory.turns_to_tokens(returns)

    def value_baseline(self, sample: Sample) -> FloatArray:
        """The value before the first token of each turn, for all its tokens."""
        turns = sample.experience.segment.turn_ids[sample.experience.segment.loss_mask]
        firsts = np.flatnonzero(np.diff(turns, prepend=-1))
        return np.repeat(super().value_baseline(sample)[firsts], np.diff(firsts, append=len(turns)))


def estimate_turn_gae(
    layout: TurnLayout, turn_rewards: Floats, turn_values: Floats, behind: Floats, *, gamma: float, lam: float
) -> tuple[Floats, Floats]:
    """[turns] advantages and returns; `behind` is the value behind each trajectory's end."""
    following = shift_back(turn_values, layout.trajectory_starts, behind)
    advantages = scan_back(turn_rewards + gamma * following - turn_values, layout.trajectory_starts, gamma * lam)
    return advantages, advantages + turn_values

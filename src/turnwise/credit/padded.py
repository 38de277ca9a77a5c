"""The estimators under the signatures that users of this family of systems know: padded torch tensors in and out.

In: `[batch, length]` tensors, one trajectory per row. Out: advantages and returns of the same shape, zero off the
mask. The arithmetic is that of the flat estimators; nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.credit.gae import BiLevelGae, estimate_bi_level_gae, estimate_gae
from turnwise.credit.group import estimate_grpo, estimate_rloo
from turnwise.credit.layout import Floats, Ints, TurnLayout, layout_from_keys, number_densely, whiten
from turnwise.credit.step_level import MultiStepGrpo, StdLevel, estimate_multi_step_grpo


def compute_bi_level_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    gamma: float,
    lam: float,
    high_level_gamma: float,
    turn_ids: Tensor | Literal["mask", "rewards"] | None = None,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """Bi-level GAE over `[batch, length]` tensors.

    `turn_ids` holds the turn of every sampled token and -1 elsewhere. Without it, each unbroken stretch of `loss_mask`
    is a turn, and a stretch with a reward before its end is refused: it may be turns that touch. In its place 'mask'
    takes each stretch as one turn whatever it holds, and 'rewards' ends a turn at every reward that is not 0 and
    nowhere else, as RAGEN does. A turn's reward is the sum over its tokens. `lam` serves both levels.
    """
    if not isinstance(turn_ids, Tensor):
        turn_ids = _guess_turns(token_level_rewards, loss_mask, turn_ids)
    params = BiLevelGae(gamma=gamma, lam=lam, high_level_gamma=high_level_gamma, high_level_lam=lam)

    def estimate(layout: TurnLayout, rewards: Floats, flat_values: Floats) -> tuple[Floats, Floats]:
        ended = np.zeros(len(layout.trajectory_starts) - 1)
        return estimate_bi_level_gae(layout, rewards, flat_values, ended, params)

    return _over_mask(estimate, token_level_rewards, values, loss_mask, turn_ids, should_whiten=whiten)


def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    gamma: float,
    lam: float,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """GAE over `[batch, length]` tensors; the chain passes over masked-out tokens unchanged."""

    def estimate(layout: TurnLayout, rewards: Floats, flat_values: Floats) -> tuple[Floats, Floats]:
        ended = np.zeros(len(layout.trajectory_starts) - 1)
        return estimate_gae(layout, rewards, flat_values, ended, gamma=gamma, lam=lam)

    return _over_mask(estimate, token_level_rewards, values, loss_mask, None, should_whiten=whiten)


def compute_grpo_advantage(
    token_level_rewards: Tensor,
    loss_mask: Tensor,
    group_ids: Sequence[Hashable],
    epsilon: float = 1e-6,
    scale_by_std: bool = True,
) -> tuple[Tensor, Tensor]:
    """GRPO over `[batch, length]` tensors; rows with equal `group_ids` are siblings."""

    def estimate(scores: Floats, groups: Ints) -> Floats:
        return estimate_grpo(scores, groups, scale_by_std=scale_by_std, epsilon=epsilon)

    return _spread_rows(estimate, token_level_rewards, loss_mask, group_ids)


def compute_rloo_advantage(
    token_level_rewards: Tensor, loss_mask: Tensor, group_ids: Sequence[Hashable]
) -> tuple[Tensor, Tensor]:
    """Leave-one-out over `[batch, length]` tensors; rows with equal `group_ids` are siblings."""
    return _spread_rows(estimate_rloo, token_level_rewards, loss_mask, group_ids)


def compute_multi_step_grpo_advantage(
    rewards: Tensor,
    loss_mask: Tensor,
    task_ids: Sequence[Hashable],
    run_ids: Sequence[Hashable],
    step_ids: Sequence[int],
    *,
    enable_step_norm: bool = False,
    std_cal_level: StdLevel = "group",
    std_threshold: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Step-wise GRPO: one row per step, `rewards` [batch] one per row; a run's last step speaks for it.

    The order of the rows does not matter: steps are ordered by `step_ids` within (task, run).
    """
    keys = list(zip(task_ids, run_ids, strict=True))
    run_of_row = number_densely(keys)
    last = np.zeros(len(set(keys)), dtype=np.int64)
    for row in sorted(range(len(keys)), key=lambda row: step_ids[row]):
        last[run_of_row[row]] = row
    groups = number_densely(task_ids)[last]
    params = MultiStepGrpo(step_norm=enable_step_norm, std_level=std_cal_level, std_threshold=std_threshold)
    final = rewards.detach().double().cpu().numpy()[last]
    per_run = estimate_multi_step_grpo(final, groups, np.bincount(run_of_row), params)
    advantages = torch.as_tensor(per_run[run_of_row], device=loss_mask.device)[:, None] * loss_mask.bool()
    advantages = advantages.to(rewards.dtype)
    return advantages, advantages


def _spread_rows(
    estimate: Callable[[Floats, Ints], Floats], rewards: Tensor, loss_mask: Tensor, group_ids: Sequence[Hashable]
) -> tuple[Tensor, Tensor]:
    """One number per row from its sum of rewards, on all its sampled tokens."""
    mask = loss_mask.bool()
    scores = (rewards * mask).sum(dim=-1).double().cpu().numpy()
    advantages = torch.as_tensor(estimate(scores, number_densely(group_ids)), device=mask.device)[:, None] * mask
    advantages = advantages.to(rewards.dtype)
    return advantages, advantages


def _over_mask(
    estimate: Callable[[TurnLayout, Floats, Floats], tuple[Floats, Floats]],
    rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    turn_ids: Tensor | None,
    *,
    should_whiten: bool,
) -> tuple[Tensor, Tensor]:
    mask = loss_mask.bool().cpu().numpy()
    if not mask.any():
        return torch.zeros_like(values), torch.zeros_like(values)
    layout = _layout(mask, None if turn_ids is None else turn_ids.cpu().numpy())
    flat_rewards = rewards.detach().double().cpu().numpy()[mask]
    advantages, returns = estimate(layout, flat_rewards, values.detach().double().cpu().numpy()[mask])
    advantages = whiten(advantages) if should_whiten else advantages
    return _put(advantages, mask, values), _put(returns, mask, values)


def _layout(mask: NDArray[np.bool_], turn_ids: NDArray[np.int64] | None) -> TurnLayout:
    if turn_ids is None:
        # A turn begins where the mask switches on.
        turn_ids = np.cumsum(np.diff(mask.astype(np.int64), axis=1, prepend=0) == 1, axis=1)
    elif not np.array_equal(turn_ids >= 0, mask):
        raise ValueError("turn_ids must be >= 0 on exactly the tokens whose loss_mask is set, and -1 elsewhere")
    rows: Ints = np.broadcast_to(np.arange(mask.shape[0])[:, None], mask.shape)[mask]
    return layout_from_keys(rows, turn_ids[mask].astype(np.int64))


def _guess_turns(rewards: Tensor, loss_mask: Tensor, ends: str | None) -> Tensor | None:
    """The turns that rewards imply; None if the mask implies them."""
    mask = loss_mask.bool()
    is_paid = mask & (rewards != 0)
    if ends == "rewards":
        # A turn goes on over masked-out tokens until something is paid.
        before = is_paid.long().cumsum(dim=1) - is_paid.long()
        return torch.where(mask, before, -1)
    if ends not in (None, "mask"):
        raise ValueError(f"turn_ids: {ends!r} given; expected a tensor, 'mask', 'rewards' or nothing")
    goes_on = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
    inside = (is_paid & goes_on).nonzero()
    if ends is None and len(inside):
        row, column = inside[0].tolist()
        raise ValueError(
            f"row {row} has a reward at token {column} and goes on with sampled tokens, so turns may touch there. Give "
            "turn_ids; or turn_ids='rewards' to end a turn at every reward, turn_ids='mask' to take each stretch of "
            "the mask as one turn"
        )
    return None


def _put(flat: Floats, mask: NDArray[np.bool_], like: Tensor) -> Tensor:
    padded = np.zeros(mask.shape)
    padded[mask] = flat
    return torch.as_tensor(padded, dtype=like.dtype, device=like.device)

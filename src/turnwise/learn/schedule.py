"""The optimizer, and how its learning rate moves over a run.

In: parameters, `learn.optim` and a step. Out: AdamW, and the share of the rate at that step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from turnwise.config.schema_learn import LearnSettings, ModelCritic, OptimSettings


def learning_rate_share(optim: OptimSettings, step: int, num_steps: int) -> float:
    """The share of `learn.optim.lr` at a step counted from 0."""
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    if optim.schedule == "constant":
        return warm
    left = max(0.0, 1 - step / max(num_steps, 1))
    if optim.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return warm * (optim.final_lr_share + (1 - optim.final_lr_share) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, learn: LearnSettings, step: int) -> None:
    """The rates of an optimizer that was made here, at a step counted from 0."""
    share = learning_rate_share(learn.optim, step, learn.steps)
    for group in optimizer.param_groups:
        group["lr"] = learn.optim.lr * share * group["share"]


def make_optimizer(
    actor: Sequence[nn.Parameter], critic: Sequence[nn.Parameter], learn: LearnSettings
) -> torch.optim.AdamW:
    """AdamW over what is trained; `share` of a group is its rate in terms of the actor's."""
    optim = learn.optim
    groups: list[dict[str, Any]] = [{"params": [*actor, *critic], "share": 1.0}]
    if isinstance(learn.critic, ModelCritic):
        groups = [{"params": [*actor], "share": 1.0}, {"params": [*critic], "share": learn.critic.lr / optim.lr}]
    return make_adamw(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), weight_decay=optim.weight_decay)


def make_adamw(groups: Sequence[dict[str, Any]], **rates: Any) -> torch.optim.AdamW:
    """Parameter by parameter: made for all at once, its intermediate results would be as large as the model."""
    is_on_gpu = any(p.is_cuda for group in groups for p in group["params"])
    how: dict[str, Any] = {"fused": True} if is_on_gpu else {"foreach": False}
    return torch.optim.AdamW(groups, **rates, **how)

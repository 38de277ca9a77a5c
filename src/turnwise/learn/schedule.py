"""How the learning rate moves over a run.

In: `learn.optim` and a step. Out: the share of the rate there.
"""

from __future__ import annotations

import math

from turnwise.config.sections.learn import OptimSettings


def learning_rate_share(optim: OptimSettings, step: int, num_steps: int) -> float:
    """The share of `learn.optim.lr` at a step counted from 0."""
    warm = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    if optim.schedule == "constant":
        return warm
    left = max(0.0, 1 - step / max(num_steps, 1))
    if optim.schedule == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return warm * (optim.final_lr_share + (1 - optim.final_lr_share) * left)

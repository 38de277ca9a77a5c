"""`watch`: signs of trouble, and what is done about them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings, WholeSettings


class WatchSettings(Settings):
    window: PositiveInt = 10
    """Steps at the start of a run that say what is usual, and newest steps over which success is smoothed."""
    patience: PositiveInt = 10
    """Steps in a row that a sign must last before it is told, and be gone before it can be told again."""
    stop: Literal["never", "collapse"] = "never"
    """Only tell; or keep checkpoints to go back to, and end a collapsed run with the one from before its trouble."""
    min_spread_share: float = Field(default=0.1, gt=0, lt=1)
    """Least spread of returns inside groups, as a share of its median in the first `window` steps."""
    max_repetition: float = Field(default=0.5, gt=0, lt=1)
    """Largest share of repeated 3-grams inside replies."""
    max_grad_ratio: float = Field(default=10.0, gt=1)
    """Largest gradient norm, as a multiple of its median over the `window` steps before."""
    max_clip_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Largest share of tokens whose ratio the loss clips."""
    max_kl: PositiveFloat = 0.2
    """Largest distance, per token, between the policy that sampled and the one that is trained."""
    max_behavior_gap: PositiveFloat = 0.2
    """Largest mean distance, per token, between the log-probs of the engine that sampled and of the learner."""
    max_reference_kl: PositiveFloat = 5.0
    """Largest distance, per token, between the policy and its frozen reference."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = {}
        if run.rollout.group_size == 1:
            idle |= self.idle("min_spread_share", why="with rollout.group_size 1: nobody has siblings")
        if run.learn.kl.type == "none":
            idle |= self.idle("max_reference_kl", why="with learn.kl.type 'none': there is no reference")
        return idle

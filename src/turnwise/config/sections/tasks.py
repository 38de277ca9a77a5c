"""`tasks`: which tasks of the worlds come next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from turnwise.config.settings import Settings, WholeSettings


class TaskSettings(Settings):
    num_tasks: PositiveInt | None = None
    """How many training tasks there are, for each environment; null: new ones for ever, or with `epochs` as many as the
    environment has."""
    epochs: PositiveInt | None = None
    """Go this many times through the training tasks of the main environment: `learn.steps` then is that many rollouts,
    whatever stands beside it; a `learn.steps` that overrides a file counts in place of its epochs. null: `learn.steps`
    counts."""
    selector: Literal["sequential", "random", "difficulty"] = "sequential"
    """Which of them come next: in order, shuffled anew in each epoch, or those whose success is likely to be near
    `target_success`."""
    target_success: float = Field(default=0.5, ge=0, le=1)
    """Of the selector `difficulty`: the share of successes that teaches most."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        idle = {}
        if self.num_tasks is None and self.epochs is None and self.selector != "sequential":
            idle["selector"] = f"'{self.selector}' has no effect without {path}.num_tasks: no task comes twice"
        if self.selector != "difficulty":
            idle |= self.idle("target_success", why=f"with {path}.selector '{self.selector}'")
        return idle

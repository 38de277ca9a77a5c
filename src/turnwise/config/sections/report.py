"""`report`: what is written down while a run goes on."""

from __future__ import annotations

from pydantic import Field

from turnwise.config.settings import Settings


class ReportSettings(Settings):
    checkpoint_every: int = Field(default=0, ge=0)
    """Save every this many steps; 0: only at the end."""
    trajectories_per_step: int = Field(default=4, ge=0)
    """How many are written to trajectories/ each step, tokens included."""
    tensorboard: bool = True
    """Write TensorBoard event files."""

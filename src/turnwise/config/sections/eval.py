"""`eval`: how the policy is measured."""

from __future__ import annotations

from pydantic import Field

from turnwise.config.settings import Settings


class EvalSettings(Settings):
    episodes: int = Field(default=400, ge=0)
    """Held-out episodes of each environment, always the same; 0: nothing is evaluated, and a trainer of its own
    opens no engine."""
    every: int = Field(default=0, ge=0)
    """Evaluate every this many steps; 0: only before and after."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    first_seed: int = Field(default=0, ge=0)
    """Evaluation tasks count up from here, whatever run.seed is."""

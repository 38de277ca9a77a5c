"""`warm_start`: what the policy imitates before reinforcement learning."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from turnwise.config.settings import Settings


class NoWarmStart(Settings):
    type: Literal["none"] = "none"
    """Reinforcement learning starts from the model as it is."""


class OracleWarmStart(Settings):
    type: Literal["oracle"]
    """Imitate the environment's oracle on training tasks before reinforcement learning starts."""
    episodes: PositiveInt = 300
    """Demonstrations, on training layouts that no rollout uses."""
    steps: PositiveInt = 60
    """Optimizer steps."""
    batch_rows: PositiveInt = 256
    """Rows (segments) per optimizer step."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the imitation."""

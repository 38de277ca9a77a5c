"""`warm_start`: what the policy imitates before reinforcement learning."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from turnwise.config.sections.endpoint import EndpointSettings
from turnwise.config.settings import Settings


class NoWarmStart(Settings):
    type: Literal["none"] = "none"
    """Reinforcement learning starts from the model as it is."""


class LessonSettings(Settings):
    """How demonstrations are imitated, whoever gives them."""

    episodes: PositiveInt = 300
    """Demonstrations, on training layouts that no rollout uses."""
    steps: PositiveInt = 60
    """Optimizer steps."""
    batch_rows: PositiveInt = 256
    """Rows (segments) per optimizer step."""
    lr: PositiveFloat = 1e-3
    """Learning rate of the imitation."""


class OracleWarmStart(LessonSettings):
    type: Literal["oracle"]
    """Imitate the environment's oracle on training tasks before reinforcement learning starts."""


class EndpointWarmStart(EndpointSettings, LessonSettings):
    type: Literal["endpoint"]
    """Imitate a model behind an OpenAI-compatible endpoint, which plays training tasks greedily."""
    keep: Literal["successes", "all"] = "successes"
    """Which of its episodes are imitated: those that succeeded, or all that were played to their end."""

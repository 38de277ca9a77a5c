"""`learn.loss`: the settings of the policy losses that have any.

They stand here and not beside their losses, so that reading settings does not import torch.
"""

from __future__ import annotations

from pydantic import Field, PositiveFloat

from turnwise.config.settings import Settings


class PpoClipParams(Settings):
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio may fall to 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """The ratio may rise to 1 + clip_high; larger than clip_low is clip-higher (DAPO, arXiv 2503.14476)."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """With a negative advantage the loss is at most this many times it (arXiv 1912.09729); null switches it off."""


class GspoParams(Settings):
    clip_low: float = Field(default=3e-4, gt=0, lt=1)
    """The turn's ratio may fall to 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0)
    """The turn's ratio may rise to 1 + clip_high."""


class CispoParams(Settings):
    clip_low: float = Field(default=1.0, gt=0)
    """The weight may fall to 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    """The weight may rise to 1 + clip_high."""


class SapoParams(Settings):
    tau_positive: PositiveFloat = 1.0
    """How sharply the gate closes for good tokens."""
    tau_negative: PositiveFloat = 1.05
    """How sharply the gate closes for bad tokens."""


class OpmdLossParams(Settings):
    tau: float = Field(default=0.0, ge=0)
    """Strength of the pull to the sampling policy; divides the gradient by 1 + tau."""

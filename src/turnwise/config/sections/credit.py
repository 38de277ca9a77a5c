"""`credit`: how rewards become advantages. The settings of a rule stand beside it, in the room `credit`."""

from __future__ import annotations

from turnwise.config.settings import Settings


class CreditSettings(Settings):
    type: str = "bi_level_gae"
    """A registered credit rule or 'package.module:Class'."""

"""`loop`: who runs when."""

from __future__ import annotations

from typing import Literal

from turnwise.config.settings import Settings


class LoopSettings(Settings):
    type: Literal["serial", "pipelined"] = "serial"
    """Explore and learn in turns, or at the same time."""

"""`loop`: who runs when."""

from __future__ import annotations

from turnwise.config.settings import Settings


class LoopSettings(Settings):
    type: str = "serial"
    """Explore and learn in turns, or with `pipelined` at the same time; or a function, 'package.module:function'."""

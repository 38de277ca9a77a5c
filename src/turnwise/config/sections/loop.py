"""`loop`: who runs when."""

from __future__ import annotations

from turnwise.config.settings import Settings


class LoopSettings(Settings):
    type: str = "serial"
    """Explore and learn in turns, or with `pipelined` at the same time; or a function, 'package.module:function'."""

    @property
    def is_in_turns(self) -> bool:
        """Whether nothing is played while the policy is updated; never assumed of a function of one's own."""
        return self.type == "serial"

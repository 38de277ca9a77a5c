"""`buffer`: where experiences wait between exploring and learning."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from turnwise.config.settings import Settings, WholeSettings

BufferUnit = Literal["experiences", "groups", "tokens"]


class PrioritySettings(Settings):
    type: str = "newest"
    """A registered priority or 'package.module:Class'."""


class BufferSettings(Settings):
    type: str = "memory"
    """Where experiences wait: in memory, or with `sqlite` in `experience.db` in the run directory, which outlives a
    killed run; or 'package.module:Class'."""
    train_batch_size: PositiveInt | None = None
    """Most of one update, in `unit`; the rest is kept for the next. Null: everything there is."""
    unit: BufferUnit = "experiences"
    """What `train_batch_size` counts."""
    capacity: PositiveInt | None = None
    """Most experiences that wait or may be used again; the lowest priority is dropped beyond it. Null: no limit."""
    priority: PrioritySettings = PrioritySettings()
    """Which groups are learnt from first, by `type`; of equal ones, those that came first."""
    reuse_cooldown: PositiveInt | None = None
    """Updates until a group may be learnt from again; 1: in the next. Null: never again."""
    offline: str | None = None
    """A file that `turnwise export` wrote, to learn from without exploring; null: learn from what is explored."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.train_batch_size is not None or self.unit == "experiences":
            return {}
        return {"unit": f"'{self.unit}' has no effect without {path}.train_batch_size"}

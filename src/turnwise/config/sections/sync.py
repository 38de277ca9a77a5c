"""`sync`: how and when new weights reach the explorer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings, WholeSettings

SyncStyle = Literal["fixed", "dynamic_by_explorer", "dynamic_by_trainer"]


class SyncSettings(Settings):
    style: SyncStyle = "fixed"
    """When new weights reach the explorer: before fixed rollouts; when it asks; or when the trainer has made enough
    updates."""
    interval: PositiveInt = 1
    """Updates between two publications, or rollouts after which the explorer asks."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Most updates that the weights of a rollout may be behind when it begins; 0 is the serial loop. Null: as many as
    `interval` and `offset` need, or one more than the serial loop; without a bound where `run.mode` is 'explore'."""
    offset: int | None = Field(default=None, ge=0)
    """Rollouts that the explorer is ahead in the style 'fixed'. Null: as many as `max_staleness` allows."""
    timeout_s: PositiveFloat = 1800.0
    """Longest wait of explorer and trainer for each other; with a cluster also for news of any part of it."""
    max_probe_gap: PositiveFloat | Literal["auto"] = "auto"
    """Largest mean distance, in nats per token, between what engine and learner make of one text after a sync; more
    stops the run. auto: 0.02 with model.dtype float32, 0.2 with bfloat16, and 20 times the rounding of the first sync
    where that is less."""
    method: str = "memory"
    """How weights travel: inside the process, or with `checkpoint` as files in the run directory, for processes of
    their own; or 'package.module:Class'."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if run.run.mode != "both":
            return self.idle("max_probe_gap", why=f"with run.mode '{run.run.mode}': engine and learner do not meet")
        idle = {}
        if run.engine.type in ("local", "scripted"):
            idle = self.idle(
                "max_probe_gap", why=f"with engine.type '{run.engine.type}': it holds no weights elsewhere"
            )
        if run.loop.type == "serial":
            names = ["style", "max_staleness", "offset", "method"]
            if run.cluster.type == "none":
                names.append("timeout_s")
            return idle | self.idle(*names, why="with loop.type 'serial'")
        if self.style != "fixed":
            idle |= self.idle("offset", why=f"with {path}.style '{self.style}'")
        if run.cluster.type != "none":
            idle |= self.idle("method", why=f"with cluster.type '{run.cluster.type}'")
        return idle

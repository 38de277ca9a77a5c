"""`run`: what a process does and where its run lies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turnwise.config.settings import Settings


class RunSettings(Settings):
    seed: int = Field(default=0, ge=0)
    """Everything random in a run comes from this number."""
    mode: Literal["both", "explore", "train", "eval"] = "both"
    """What this process does: explore and train; only play and store; only learn from what is stored; or evaluate the
    newest policy of --run-dir, or `model.path`."""
    root: str = "runs"
    """Where new run directories are made."""

"""The stages of a run, whose batches callbacks hear of before an update is made."""

from __future__ import annotations

from typing import Any

from turnwise.loop.parts import LearnParts
from turnwise.loop.stages import Stages
from turnwise.report.callbacks import Callbacks
from turnwise.types import Batch, StepReport


class HeardStages(Stages):
    """Does what the stages inside do, and tells."""

    def __init__(self, inner: Stages, callbacks: Callbacks) -> None:
        self._inner = inner
        self._callbacks = callbacks

    def rl_step(self, parts: LearnParts, batch: Batch) -> StepReport:
        self._callbacks.on_batch(parts.learner.policy_version + 1, batch)
        return self._inner.rl_step(parts, batch)

    def __getattribute__(self, name: str) -> Any:
        """Everything else is the inner stages' own, also what a trainer wrote differently."""
        if name in ("rl_step", "_inner", "_callbacks") or name.startswith("__"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("_inner"), name)

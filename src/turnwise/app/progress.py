"""How far a run is: what its checkpoints keep of the loop, beside the learner's own state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.loop.serial import LoopStep
from turnwise.report.metrics import count_failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """After `step` steps of a run."""

    step: int = 0
    policy_version: int = 0
    tokens_sampled: int = 0
    tokens_trained: int = 0
    wall_s: float = 0.0
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """The state of the task source."""
    warm_start: Mapping[str, float] | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Episodes that failed so far, by cause."""

    def after(self, step: LoopStep) -> Progress:
        return replace(
            self,
            step=step.step,
            policy_version=step.learnt.policy_version,
            tokens_sampled=self.tokens_sampled + step.tokens_sampled,
            tokens_trained=self.tokens_trained + step.tokens_trained,
            tasks=step.tasks,
            failures=count_failures(step.groups, self.failures),
        )

"""The audit of a run, with what its loop says about how old a batch can be."""

from __future__ import annotations

from pathlib import Path

from turnwise.audit.batch_audit import BatchAudit
from turnwise.config.schema import TurnwiseSettings
from turnwise.protocols import Learner
from turnwise.sync.sync_schedule import rules_of


def open_audit(settings: TurnwiseSettings, learner: Learner, run_path: Path | None) -> BatchAudit | None:
    """What holds every batch against what was sampled."""
    if not settings.audit.is_on:
        return None
    return BatchAudit(settings, learner, max_staleness=_bound_of_staleness(settings), run_path=run_path)


def _bound_of_staleness(settings: TurnwiseSettings) -> int | None:
    """How many updates old a batch can be; None where what waits in the buffer may grow older."""
    buffer = settings.buffer
    if settings.run.mode != "both" or not buffer.train_batch_size is buffer.reuse_cooldown is None:
        return None
    if settings.loop.is_in_turns:
        return settings.sync.interval - 1
    return rules_of(settings.sync).max_staleness if settings.loop.type == "pipelined" else None

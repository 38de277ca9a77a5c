"""The buffer that a config names. Not in `build.py`: a process that keeps a buffer and nothing else needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from turnwise.config.component import BUFFERS, PRIORITIES
from turnwise.config.schema import TurnwiseSettings
from turnwise.deps import BufferSite
from turnwise.protocols import Buffer


def open_buffer(settings: TurnwiseSettings, run_path: Path | None) -> Buffer:
    """The buffer of a run; a durable one that is there already is opened."""
    chosen = settings.buffer
    priority: Any = PRIORITIES.get_target(chosen.priority.type)
    buffer: Any = BUFFERS.get_target(chosen.type)
    return cast(Buffer, buffer.open(chosen, BufferSite(priority=priority(chosen.priority), run_path=run_path)))

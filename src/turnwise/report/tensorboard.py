"""The metrics of a step come in; scalars in TensorBoard's event format go out.

Uses TensorBoard's own record writer and messages, so that this room needs no torch. The event file is opened here and
not by TensorBoard's file writer, because that one puts the host's name into the file name. Refuses to know which
metrics there are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]  # generated
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]  # generated
from tensorboard.summary.writer.record_writer import RecordWriter

from turnwise.errors import RunError
from turnwise.floor.files import reason
from turnwise.types import Metrics


class TensorboardSink:
    """Writes each metric as a scalar; flushed per step, so that a running TensorBoard follows."""

    def __init__(self, directory: Path, *, resumed_step: int | None = None) -> None:
        """With `resumed_step`, TensorBoard forgets what an earlier part of the run wrote for later steps."""
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._records = RecordWriter((directory / name).open("xb"))
        except OSError as error:
            raise RunError(
                f"Cannot write to {directory}: {reason(error)}. Check that it is a writable folder."
            ) from error
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resumed_step is not None:
            start = SessionLog(status=SessionLog.START)
            self._append(Event(wall_time=time.time(), step=resumed_step + 1, session_log=start))
        self._records.flush()

    def write(self, step: int, metrics: Metrics) -> None:
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def _append(self, event: Event) -> None:
        self._records.write(event.SerializeToString())

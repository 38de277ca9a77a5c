"""The metrics of a step come in; scalars, histograms and texts in TensorBoard's event format go out.

Uses TensorBoard's own record writer and messages, so that this room needs no torch. The event file is opened here and
not by TensorBoard's file writer, because that one puts the host's name into the file name. Refuses to know which
metrics there are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]  # generated
from tensorboard.compat.proto.summary_pb2 import (  # generated
    HistogramProto,  # type: ignore[attr-defined]
    Summary,  # type: ignore[attr-defined]
    SummaryMetadata,  # type: ignore[attr-defined]
)
from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[attr-defined]  # generated
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # type: ignore[attr-defined]  # generated
from tensorboard.compat.proto.types_pb2 import DT_STRING  # type: ignore[attr-defined]  # generated
from tensorboard.summary.writer.record_writer import RecordWriter

from turnwise.errors import RunError
from turnwise.infra.atomic_files import reason
from turnwise.types import Metrics

_NUM_BINS = 30
_ONE_TEXT = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])


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

    def draw(self, step: int, histograms: Mapping[str, object], texts: Mapping[str, str]) -> None:
        """How numbers are spread, and what was said."""
        values = [Summary.Value(tag=name, histo=_histogram(numbers)) for name, numbers in histograms.items()]
        values += [
            Summary.Value(
                tag=name,
                metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
                tensor=TensorProto(
                    dtype=DT_STRING, string_val=[text.encode("utf-8", "backslashreplace")], tensor_shape=_ONE_TEXT
                ),
            )
            for name, text in texts.items()
        ]
        if values:
            self._append(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self._records.flush()

    def close(self) -> None:
        self._records.close()

    def _append(self, event: Event) -> None:
        self._records.write(event.SerializeToString())


def _histogram(numbers: object) -> HistogramProto:
    values = np.asarray(cast("list[float]", numbers), dtype=np.float64).ravel()
    values = values[np.isfinite(values)]
    if not len(values):
        return HistogramProto()
    counts, edges = np.histogram(values, bins=_NUM_BINS)
    return HistogramProto(
        min=values.min(),
        max=values.max(),
        num=len(values),
        sum=values.sum(),
        sum_squares=float(values @ values),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )

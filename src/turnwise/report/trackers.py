"""The metrics of a step come in; they go to the tracker that a user already has, through its own package.

`report.trackers` names them. Each package is an extra, is imported only where it is named, and is told where to write
by its own environment variables (`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`, …): no address and no key is ours to
know. A tracker that fails while a run goes on is dropped with a warning, like every sink.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from tensorboard.compat.proto.event_pb2 import (
    Event,  # type: ignore[attr-defined]  # generated
    SessionLog,  # type: ignore[attr-defined]  # generated
)
from tensorboard.compat.proto.summary_pb2 import (
    HistogramProto,  # type: ignore[attr-defined]
    Summary,  # type: ignore[attr-defined]
    SummaryMetadata,  # type: ignore[attr-defined]
)
from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[attr-defined]  # generated
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto  # type: ignore[attr-defined]  # generated
from tensorboard.compat.proto.types_pb2 import DT_STRING  # type: ignore[attr-defined]  # generated
from tensorboard.summary.writer.record_writer import RecordWriter

from turnwise.config.component import TRACKERS
from turnwise.config.settings import require_package
from turnwise.errors import RunError
from turnwise.infra.atomic_files import reason
from turnwise.infra.seeds import hash64
from turnwise.protocols import Sink
from turnwise.types import Metrics

PROJECT = "turnwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSite:
    """What a tracker is opened for: `report.trackers` names classes with `open(site) -> Sink`."""

    run_path: Path
    settings: Mapping[str, object]
    """All of the run, by their dotted paths."""

    @property
    def name(self) -> str:
        return self.run_path.name

    @property
    def id(self) -> str:
        """The same for a run that is resumed."""
        return f"{hash64(str(self.run_path.resolve())):016x}"


class Tracker(Protocol):
    @classmethod
    def open(cls, site: TrackerSite) -> Sink: ...


def open_trackers(names: Sequence[str], site: TrackerSite) -> list[Sink]:
    return [cast(Tracker, TRACKERS.get_target(name)).open(site) for name in names]


def require_trackers(names: Sequence[str]) -> None:
    """Raise where one is not known, or its package is not here."""
    for name in names:
        target = TRACKERS.get_target(name)
        package = getattr(target, "package", None)
        if package is not None:
            require_package(package, extra=name, asked_by=f"report.trackers: {name}")


def _package(name: str, module: str) -> Any:
    return require_package(module, extra=name, asked_by=f"report.trackers: {name}")


class WandbTracker:
    """Weights & Biases."""

    package = "wandb"

    def __init__(self, run: Any) -> None:
        self._run = run

    @classmethod
    def open(cls, site: TrackerSite) -> WandbTracker:
        wandb = _package("wandb", cls.package)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=site.name,
            id=site.id,
            resume="allow",
            dir=str(site.run_path),
            config=dict(site.settings),
        )
        return cls(run)

    def write(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """MLflow; without `MLFLOW_TRACKING_URI` a database in the run directory."""

    package = "mlflow"

    def __init__(self, client: Any, run_id: str, make_metric: Any) -> None:
        self._client = client
        self._run_id = run_id
        self._make_metric = make_metric

    @classmethod
    def open(cls, site: TrackerSite) -> MlflowTracker:
        mlflow = _package("mlflow", cls.package)
        entities = _package("mlflow", "mlflow.entities")
        client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{site.run_path}/mlflow.db")
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else client.create_experiment(project)
        run_id = client.create_run(experiment, run_name=site.name).info.run_id
        params = [entities.Param(key, str(value)[:500]) for key, value in site.settings.items()]
        # The most that a server takes at once.
        for start in range(0, len(params), 100):
            client.log_batch(run_id, params=params[start : start + 100])
        return cls(client, run_id, entities.Metric)

    def write(self, step: int, metrics: Metrics) -> None:
        now_ms = int(time.time() * 1000)
        rows = [self._make_metric(name, float(value), now_ms, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class SwanlabTracker:
    """SwanLab; `SWANLAB_MODE=local` or `offline` keeps everything on this machine."""

    package = "swanlab"

    def __init__(self, swanlab: Any) -> None:
        self._swanlab = swanlab

    @classmethod
    def open(cls, site: TrackerSite) -> SwanlabTracker:
        swanlab = _package("swanlab", cls.package)
        swanlab.init(
            project=os.environ.get("SWANLAB_PROJECT", PROJECT),
            experiment_name=site.name,
            config=dict(site.settings),
            logdir=str(site.run_path / "swanlab"),
            mode=os.environ.get("SWANLAB_MODE"),
        )
        return cls(swanlab)

    def write(self, step: int, metrics: Metrics) -> None:
        self._swanlab.log(dict(metrics), step=step)

    def close(self) -> None:
        self._swanlab.finish()


class TrackioTracker:
    """Trackio, which is on this machine unless it is told otherwise (`TRACKIO_DIR` says where)."""

    package = "trackio"

    def __init__(self, run: Any) -> None:
        self._run = run

    @classmethod
    def open(cls, site: TrackerSite) -> TrackioTracker:
        trackio = _package("trackio", cls.package)
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        return cls(trackio.init(project=project, name=site.name, config=dict(site.settings), resume="allow"))

    def write(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


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

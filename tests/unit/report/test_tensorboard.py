from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from turnwise.errors import RunError
from turnwise.report.trackers import TensorboardSink


def read_scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_scalars_are_there_before_close(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path)
    sink.write(1, {"rollout/success": 0.25})
    sink.write(2, {"rollout/success": 0.5, "learn/loss": 1.0})
    assert read_scalars(tmp_path) == {"rollout/success": [(1, 0.25), (2, 0.5)], "learn/loss": [(2, 1.0)]}
    sink.close()


def test_a_resumed_run_replaces_later_steps(tmp_path: Path) -> None:
    first = TensorboardSink(tmp_path)
    for step in (1, 2, 3):
        first.write(step, {"learn/loss": 1.0})
    first.close()
    second = TensorboardSink(tmp_path, resumed_step=1)
    second.write(2, {"learn/loss": 0.5})
    second.close()
    assert read_scalars(tmp_path) == {"learn/loss": [(1, 1.0), (2, 0.5)]}


def test_the_file_name_does_not_tell_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "host-probe")
    TensorboardSink(tmp_path).close()
    (file,) = tmp_path.iterdir()
    assert "tfevents" in file.name
    assert "host-probe" not in file.name


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="Cannot write to"):
        TensorboardSink(tmp_path / "taken")


@pytest.mark.slow
def test_the_room_needs_no_torch() -> None:
    modules = "console, metrics, plots, run_dir, trackers, trajectories"
    code = f"import sys; from turnwise.report import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

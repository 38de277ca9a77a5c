"""Trackers through their own packages, on this machine alone; one that is not installed is skipped."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from turnwise.errors import ConfigError
from turnwise.report.trackers import TrackerSite, open_trackers, require_trackers

NAMES = ("wandb", "mlflow", "swanlab", "trackio")
LOCAL = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "SWANLAB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "",
}


def write_two_steps(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip(name, reason=f"the extra '{name}' is not installed")
    for key, value in LOCAL.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    run = folder / "run-1"
    run.mkdir()
    (sink,) = open_trackers([name], TrackerSite(run_path=run, settings={"learn.steps": 2, "env.type": "lake"}))
    for step in (1, 2):
        sink.write(step, {"rollout/success": step / 4, "learn/loss": -1.0})
    sink.close()
    return run


@pytest.mark.slow
def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_two_steps("wandb", tmp_path, monkeypatch)
    (file,) = run.rglob("*.wandb")
    assert b"rollout/success" in file.read_bytes()


@pytest.mark.slow
def test_mlflow_writes_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy", reason="mlflow keeps a database with sqlalchemy")
    run = write_two_steps("mlflow", tmp_path, monkeypatch)
    with sqlite3.connect(run / "mlflow.db") as database:
        rows = database.execute("SELECT step, value FROM metrics WHERE key = 'rollout/success' ORDER BY step")
        assert rows.fetchall() == [(1, 0.25), (2, 0.5)]


@pytest.mark.slow
def test_swanlab_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_two_steps("swanlab", tmp_path, monkeypatch)
    assert any(path.is_file() for path in (run / "swanlab").rglob("*"))


@pytest.mark.slow
def test_trackio_writes_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="the extra 'trackio' is not installed")
    # It reads where to write when it is imported.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for module in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)
    write_two_steps("trackio", tmp_path, monkeypatch)
    assert list((tmp_path / "trackio").rglob("*.db"))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_explained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"report\.trackers: {name} needs the package.*turnwise\[{name}\]"):
        require_trackers([name])


def test_a_site_names_a_run_the_same_when_it_goes_on(tmp_path: Path) -> None:
    one, again = (TrackerSite(run_path=tmp_path / "run", settings={}) for _ in range(2))
    assert one.id == again.id != TrackerSite(run_path=tmp_path / "other", settings={}).id


def test_every_tracker_is_an_extra() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert all(f"\n{name} = [" in text for name in NAMES)

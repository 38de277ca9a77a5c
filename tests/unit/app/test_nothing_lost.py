"""Kills, a second process in the same run, damaged files, full disks, signals: each found once by hand, each a test."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.clock import HANG_S
from tests.small_run import SMALL_LAKE, without_plots
from turnwise.app import recording
from turnwise.app.run import Run, resume, train
from turnwise.errors import RunError
from turnwise.report.run_dir import RunDirectory
from turnwise.sync.presence import place_of

pytestmark = pytest.mark.slow

SEPARATE = [
    *SMALL_LAKE,
    "buffer.type=sqlite",
    "buffer.train_batch_size=3",
    "buffer.unit=groups",
    "sync.method=checkpoint",
    f"sync.timeout_s={HANG_S}",
    "learn.steps=4",
]


class Killed(BaseException):
    """As sudden as a kill: nothing but the files is left."""


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def kill_after(patch: pytest.MonkeyPatch, step: int) -> None:
    """The process dies when this step has been written down."""
    plain = recording.ProgressDisplay.update

    def update(self: Any, done: int, *rest: Any) -> None:
        plain(self, done, *rest)
        if done == step:
            raise Killed

    patch.setattr(recording.ProgressDisplay, "update", update)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(Run(path).policy / "model.safetensors")


def same_weights(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(first[name], second[name]) for name in first)


def untimed(path: Path) -> list[dict[str, float]]:
    timed = ("time", "rollout/tokens_per_s", "sync/explorer_wait_s", "sync/trainer_wait_s")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in Run(path).metrics()]


def ask(path: Path, question: str) -> list[tuple[int, ...]]:
    with sqlite3.connect(path / "experience.db", timeout=HANG_S) as db:
        return db.execute(question).fetchall()


# --- defect 1: a trainer that is killed before its first checkpoint ---------------------------------------------------


def test_a_trainer_killed_before_its_first_checkpoint_learns_from_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had taken is taken again, by the same updates; what it had published does not outrank the new weights."""
    for name in ("straight", "killed"):
        train("frozenlake", [*SEPARATE, "run.mode=explore"], run_dir=tmp_path / name)
    trains = [*SEPARATE, "run.mode=train"]
    train("frozenlake", trains, run_dir=tmp_path / "straight")
    with monkeypatch.context() as patch:
        kill_after(patch, 3)
        with pytest.raises(Killed):
            train("frozenlake", trains, run_dir=tmp_path / "killed")
    assert RunDirectory.open(tmp_path / "killed").checkpoint_steps() == []
    train("frozenlake", trains, run_dir=tmp_path / "killed")
    straight, killed = (RunDirectory.open(tmp_path / name) for name in ("straight", "killed"))
    assert ask(killed.path, "SELECT step, COUNT(*) FROM uses GROUP BY step") == [(n, 3) for n in (1, 2, 3, 4)]
    assert killed.read_summary().steps == straight.read_summary().steps == 4
    assert killed.read_summary().tokens_trained == straight.read_summary().tokens_trained
    assert [row["step"] for row in killed.read_metrics()] == [0, 1, 2, 3, 4]
    assert same_weights(killed.path, straight.path)
    assert json.loads((killed.path / "weights" / "newest.json").read_text())["step"] == 4
    # What the explorer shows of its episodes is not the trainer's to forget.
    assert len(list(killed.trajectories.glob("step-*.jsonl"))) == 4


# --- defect 2: a run that is resumed while it runs --------------------------------------------------------------------


def test_a_run_is_not_resumed_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    plain = recording.ProgressDisplay.update

    def update(self: Any, done: int, *rest: Any) -> None:
        plain(self, done, *rest)
        if done == 1:
            with pytest.raises(RunError) as caught:
                resume(tmp_path / "run")
            refused.append(str(caught.value))

    monkeypatch.setattr(recording.ProgressDisplay, "update", update)
    train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "run")
    assert len(refused) == 1
    assert f"process {os.getpid()} on " in refused[0]
    # It ended, and so did its hold.
    for role in ("explorer", "trainer"):
        assert not place_of(tmp_path / "run", role).is_taken()
    resume(tmp_path / "run")


# --- defect 4: a run that is killed before its first checkpoint -------------------------------------------------------


@pytest.mark.parametrize("buffer", ["memory", "sqlite"])
def test_a_run_killed_before_its_first_checkpoint_begins_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: str
) -> None:
    settings = [*SMALL_LAKE, "learn.steps=3", f"buffer.type={buffer}", "report.tensorboard=true"]
    train("frozenlake", settings, run_dir=tmp_path / "straight")
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            train("frozenlake", settings, run_dir=tmp_path / "killed")
    with pytest.raises(RunError, match=r"already holds a run.*--resume"):
        train("frozenlake", settings, run_dir=tmp_path / "killed")
    resume(tmp_path / "killed")
    assert untimed(tmp_path / "killed") == untimed(tmp_path / "straight")
    assert same_weights(tmp_path / "killed", tmp_path / "straight")


def test_a_run_killed_in_its_first_moments_is_no_dead_end(tmp_path: Path) -> None:
    """Nothing but its settings was written, or not even those."""
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "metrics.jsonl").touch()
    train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "early")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "config.yaml").write_text((tmp_path / "early" / "config.yaml").read_text())
    resume(tmp_path / "late")
    assert same_weights(tmp_path / "early", tmp_path / "late")

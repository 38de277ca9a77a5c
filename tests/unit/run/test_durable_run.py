"""A run with its buffer on disk: killed for real and resumed, it is the run that was never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.run.test_run import same_weights, untimed
from turnwise.cli import main
from turnwise.errors import AuditError
from turnwise.experience.codec import read_experiences
from turnwise.experience.store import SqliteBuffer
from turnwise.run.api import Run, resume, train

from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow

DURABLE = [
    *SMALL_LAKE,
    "buffer.type=sqlite",
    "buffer.train_batch_size=9",
    "learn.steps=6",
    "report.checkpoint_every=3",
]
"""Every exploration makes more than an update takes, so that a remainder is always on disk."""
REUSING = [
    "buffer.capacity=16",
    "buffer.reuse_cooldown=2",
    "buffer.priority={type: decay_limit_randomization, sigma: 2.0, use_count_limit: 3}",
]

_CHILD = """
import os, signal, sys
from turnwise.cli import main
from turnwise.experience.codec import read_experiences
from turnwise.experience.store import SqliteBuffer
from turnwise.run.api import train
plain = SqliteBuffer.take
def take(self, step):
    taken = plain(self, step)
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return taken
SqliteBuffer.take = take
train("frozenlake", sys.argv[2:], run_dir=sys.argv[1])
"""


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


@pytest.mark.parametrize("more", [[], REUSING], ids=["remainder", "reuse"])
def test_resume_after_kill_9_is_exact(tmp_path: Path, more: list[str]) -> None:
    words = [*DURABLE, *more]
    straight = train("frozenlake", words, run_dir=tmp_path / "straight")
    assert all(row["buffer/experiences_left"] > 0 for row in straight.metrics()[1:])
    killed = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path / "killed"), *words], env=dict(os.environ), check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert [row["step"] for row in Run(tmp_path / "killed").metrics()] == [0, 1, 2, 3, 4]
    resumed = resume(tmp_path / "killed")
    assert untimed(resumed) == untimed(straight)
    assert same_weights(resumed, straight)
    stores = [SqliteBuffer(run.path / "experience.db") for run in (resumed, straight)]
    ids = [[str(e.id) for group in store.read_groups() for e in group] for store in stores]
    assert ids[0] == ids[1]


def test_what_was_explored_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("frozenlake", [*DURABLE, "learn.steps=1"], run_dir=tmp_path / "run")
    stored = [str(e.id) for group in SqliteBuffer(run.path / "experience.db").read_groups() for e in group]
    assert main(["export", str(run.path)]) == 0
    assert f"({len(stored)} experiences)" in capsys.readouterr().out
    assert main(["export", str(run.path), "--out", str(tmp_path / "out.jsonl")]) == 0
    for file in (run.path / "experience.parquet", tmp_path / "out.jsonl"):
        assert [str(e.id) for e in read_experiences(file)] == stored
    (run.path / "experience.db").unlink()
    assert main(["export", str(run.path)]) == 2
    assert "buffer.type=sqlite" in capsys.readouterr().err


def test_memory_and_disk_train_the_same(tmp_path: Path) -> None:
    disk = train("frozenlake", DURABLE, run_dir=tmp_path / "disk")
    memory = train("frozenlake", [*DURABLE, "buffer.type=memory"], run_dir=tmp_path / "memory")
    assert untimed(disk) == untimed(memory)
    assert same_weights(disk, memory)
    assert (disk.path / "experience.db").is_file()
    assert not (memory.path / "experience.db").exists()


def test_without_the_rewind_a_resumed_run_would_meet_the_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: the checkpoint is at step 3, and what later steps left behind is on disk."""
    words = [sys.executable, "-c", _CHILD, str(tmp_path / "killed"), *DURABLE]
    subprocess.run(words, env=dict(os.environ), check=False)
    monkeypatch.setattr("turnwise.experience.store.SqliteBuffer.rewind", lambda *_, **__: None)
    with pytest.raises(AuditError, match=r"staleness: .* found version 4"):
        resume(tmp_path / "killed")


@pytest.mark.parametrize(
    "change",
    ["buffer.capacity=10", "buffer.unit=groups", "buffer.reuse_cooldown=1", "buffer.priority.type=linear_decay"],
)
def test_a_setting_of_the_buffer_changes_the_run(tmp_path: Path, change: str) -> None:
    words = [*SMALL_LAKE, "buffer.train_batch_size=7", "learn.steps=4"]
    if "priority" in change:
        # Groups of one version, of which the first would be used for ever.
        words += ["buffer.reuse_cooldown=1", "sync.interval=4"]
    base = train("frozenlake", words, run_dir=tmp_path / "base")
    changed = train("frozenlake", [*words, change], run_dir=tmp_path / "changed")
    assert untimed(changed) != untimed(base)

"""Kills, a second process in the same run, damaged files, full disks, signals: each found once by hand, each a test."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from tests.clock import HANG_S
from tests.small_run import SMALL_LAKE, without_plots
from turnwise.cli import main
from turnwise.engine.local import LocalEngine
from turnwise.errors import ConfigError, RunError, SyncError
from turnwise.loop.step import Stages
from turnwise.protocols import PolicyVersion
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import TrajectoryJournal
from turnwise.rollout.workflow import EnvironmentWorkflow
from turnwise.run import checkpoints as checkpointer
from turnwise.run import run_recorder as recording
from turnwise.run.api import Run, resume, train
from turnwise.sync.role_locks import role_lock
from turnwise.sync.weight_store import FileWeightStore
from turnwise.types import Trajectory

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
        assert not role_lock(tmp_path / "run", role).is_taken()
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


def test_a_run_that_goes_on_from_its_very_start_is_evaluated_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a way back from a collapse there is a checkpoint before the first update.
    settings = [*SMALL_LAKE, "learn.steps=3", "watch.stop=collapse"]
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            train("frozenlake", settings, run_dir=tmp_path / "killed")
    run = resume(tmp_path / "killed")
    assert [row["step"] for row in run.metrics()] == [0, 1, 2, 3]


def test_a_run_killed_in_its_first_moments_is_no_dead_end(tmp_path: Path) -> None:
    """Nothing but its settings was written, or not even those."""
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "metrics.jsonl").touch()
    train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "early")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "config.yaml").write_text((tmp_path / "early" / "config.yaml").read_text())
    resume(tmp_path / "late")
    assert same_weights(tmp_path / "early", tmp_path / "late")


def test_what_waits_in_a_memory_buffer_goes_with_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three groups are learnt from in each step; what is left over is not played again."""
    batches = ["buffer.train_batch_size=2", "buffer.unit=groups"]
    settings = [*SMALL_LAKE, "learn.steps=3", "report.checkpoint_every=1", *batches]
    train("frozenlake", settings, run_dir=tmp_path / "straight")
    with monkeypatch.context() as patch:
        kill_after(patch, 3)
        with pytest.raises(Killed):
            train("frozenlake", settings, run_dir=tmp_path / "killed")
    resume(tmp_path / "killed")
    assert untimed(tmp_path / "killed") == untimed(tmp_path / "straight")
    assert untimed(tmp_path / "killed")[-1]["buffer/experiences_left"] > 0
    assert same_weights(tmp_path / "killed", tmp_path / "straight")


# --- defect 5: damage on the disk -------------------------------------------------------------------------------------


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with a checkpoint of each."""
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        path = tmp_path_factory.mktemp("saved") / "run"
        train("frozenlake", [*SMALL_LAKE, "learn.steps=3", "report.checkpoint_every=1"], run_dir=path)
    return path


@pytest.mark.parametrize("file", ["policy/model.safetensors", "optimizer.pt", "critic.safetensors", "progress.json"])
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_it_takes_over(
    tmp_path: Path, saved: Path, file: str
) -> None:
    path = tmp_path / "run"
    shutil.copytree(saved, path)
    flip_a_byte(path / "checkpoints" / "step-000003" / file)
    console = Console(file=io.StringIO(), width=400)
    resume(path, console=console)
    assert f"checkpoint of step 3 is damaged ({file} is not as it was written" in console.file.getvalue()  # type: ignore[attr-defined]
    assert (path / "checkpoints" / "step-000003.damaged").is_dir()
    assert untimed(path) == untimed(saved)
    assert same_weights(path, saved)


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_stays_as_it_is(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(saved, path)
    for step in (1, 2, 3):
        flip_a_byte(path / "checkpoints" / f"step-{step:06d}" / "optimizer.pt")
    before = (path / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"every checkpoint of it is damaged.*step-000001: optimizer\.pt"):
        resume(path)
    assert RunDirectory.open(path).checkpoint_steps() == [1, 2, 3]
    assert (path / "metrics.jsonl").read_bytes() == before


def test_a_damaged_policy_is_not_played(tmp_path: Path, saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run"
    shutil.copytree(saved, path)
    flip_a_byte(path / "checkpoints" / "step-000003" / "policy" / "model.safetensors")
    assert Run(path).policy.parent.name == "step-000002"
    assert "step-000003 is damaged" in caplog.text


# --- defect 6: full disks --------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """As a full disk: what is longer cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [2_500, 4_000, 9_000], ids=["tokenizer", "optimizer", "weights"])
def test_a_full_disk_in_a_checkpoint_is_one_message_and_the_run_goes_on_from_the_one_before(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    plain = checkpointer.save_checkpoint

    def save(folder: Path, *rest: Any) -> None:
        with files_of_at_most(limit) if folder.name == "step-000002" else nullcontext():
            plain(folder, *rest)

    settings = [*SMALL_LAKE, "learn.steps=3", "report.checkpoint_every=1"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer, "save_checkpoint", save)
        with pytest.raises(RunError, match=r"Cannot write .*step-000002: .*has space") as caught:
            train("frozenlake", settings, run_dir=tmp_path / "run")
    assert "file too large" in str(caught.value)
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]
    resume(tmp_path / "run")
    assert same_weights(tmp_path / "run", saved)


def test_what_a_killed_process_left_in_the_checkpoints_goes_with_the_next_start(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(saved, path)
    leftover = path / "checkpoints" / ".step-000004.0123abcd.unfinished"
    (leftover / "new").mkdir(parents=True)
    resume(path)
    assert not leftover.exists()


# --- defect 15: SIGTERM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", ["serial", "pipelined"])
@pytest.mark.parametrize("moment", ["rollout", "update"])
def test_sigterm_saves_as_an_interruption_does_and_the_run_goes_on(
    tmp_path: Path,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    loop: str,
    moment: str,
) -> None:
    plain_update, plain_rollout = recording.ProgressDisplay.update, Stages.rollout

    def update(self: Any, done: int, *rest: Any) -> None:
        plain_update(self, done, *rest)
        if moment == "update" and done == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    async def rollout(self: Any, parts: Any, tasks: Any, step: int, **given: Any) -> Any:
        if moment == "rollout" and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return await plain_rollout(self, parts, tasks, step, **given)

    settings = [*SMALL_LAKE, "learn.steps=3", f"loop.type={loop}", "sync.max_staleness=0"]
    settings = settings if loop == "pipelined" else settings[:-1]
    with monkeypatch.context() as patch:
        patch.setattr(recording.ProgressDisplay, "update", update)
        patch.setattr(Stages, "rollout", rollout)
        assert main(["train", "frozenlake", *settings, "--run-dir", str(tmp_path / "run")]) == 143
    told = capfd.readouterr()
    assert "ended by SIGTERM" in told.err
    assert "Traceback" not in told.err
    assert RunDirectory.open(tmp_path / "run").checkpoint_steps() == [1]
    resume(tmp_path / "run")
    assert [row["step"] for row in Run(tmp_path / "run").metrics()] == [0, 1, 2, 3]
    assert same_weights(tmp_path / "run", saved)


def test_ctrl_c_in_a_notebook_saves_and_the_run_is_resumed_exactly(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_rollout = Stages.rollout

    async def rollout(self: Any, parts: Any, tasks: Any, step: int, **given: Any) -> Any:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(asyncio.Event().wait(), HANG_S)
        return await plain_rollout(self, parts, tasks, step, **given)

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            train("frozenlake", [*SMALL_LAKE, "learn.steps=3"], run_dir=tmp_path / "run")

    notebook = asyncio.new_event_loop()
    with monkeypatch.context() as patch:
        patch.setattr(Stages, "rollout", rollout)
        notebook.run_until_complete(cell())
    notebook.close()
    assert RunDirectory.open(tmp_path / "run").checkpoint_steps() == [1]
    resume(tmp_path / "run")
    assert same_weights(tmp_path / "run", saved)


# --- a policy that does not arrive ------------------------------------------------------------------------------------


def refuse_policy(patch: pytest.MonkeyPatch, end: type, method: str, version: int) -> None:
    """As an engine, or a disk, that does not take this one."""
    plain = getattr(end, method)

    def take(self: Any, *given: Any) -> Any:
        if version in given or PolicyVersion(version, version) in given:
            raise SyncError("refused")
        return plain(self, *given)

    patch.setattr(end, method, take)


@pytest.mark.parametrize(("every", "saved_steps"), [(0, []), (1, [1])])
def test_a_run_whose_engine_refused_the_newest_policy_goes_on_from_the_last_whole_step(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, every: int, saved_steps: list[int]
) -> None:
    """The learner is ahead of the progress then, and no checkpoint may hold one of each."""
    settings = [*SMALL_LAKE, "learn.steps=3", f"report.checkpoint_every={every}"]
    with monkeypatch.context() as patch:
        refuse_policy(patch, LocalEngine, "update_weights", 2)
        with pytest.raises(SyncError, match="refused"):
            train("frozenlake", settings, run_dir=tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").checkpoint_steps() == saved_steps
    resume(tmp_path / "run")
    assert [row["step"] for row in Run(tmp_path / "run").metrics()] == [0, 1, 2, 3]
    assert same_weights(tmp_path / "run", saved)


def test_a_trainer_that_could_not_leave_its_newest_policy_goes_on_from_the_last_whole_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SEPARATE, "report.checkpoint_every=1"]
    train("frozenlake", [*settings, "run.mode=explore"], run_dir=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "straight")
    trains = [*settings, "run.mode=train"]
    train("frozenlake", trains, run_dir=tmp_path / "straight")
    with monkeypatch.context() as patch:
        refuse_policy(patch, FileWeightStore, "post", 2)
        with pytest.raises(SyncError, match="refused"):
            train("frozenlake", trains, run_dir=tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").checkpoint_steps() == [1]
    train("frozenlake", trains, run_dir=tmp_path / "run")
    assert same_weights(tmp_path / "run", tmp_path / "straight")


# --- what was played is not played again -----------------------------------------------------------------------------


def count_played(patch: pytest.MonkeyPatch) -> list[str]:
    played: list[str] = []
    append = TrajectoryJournal.append

    def append_and_count(journal: TrajectoryJournal, trajectory: Trajectory) -> None:
        append(journal, trajectory)
        played.append(str(trajectory.id))

    patch.setattr(TrajectoryJournal, "append", append_and_count)
    return played


@pytest.mark.parametrize("loop", ["serial", "pipelined"])
def test_rollouts_that_were_played_are_read_from_the_journal_in_one_process_too(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """No checkpoint covers the two that were played, and the updates that they led to are made again."""
    more = ["sync.max_staleness=0"] if loop == "pipelined" else []
    settings = [*SMALL_LAKE, "learn.steps=3", f"loop.type={loop}", *more]
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            train("frozenlake", settings, run_dir=tmp_path / "run")
    with monkeypatch.context() as patch:
        played = count_played(patch)
        resume(tmp_path / "run")
    assert {name.split("/")[0] for name in played} == {"3"}
    assert same_weights(tmp_path / "run", saved)
    assert list((tmp_path / "run" / "unfinished").iterdir()) == []


@pytest.mark.parametrize("is_damaged", [False, True], ids=["cut short", "damaged"])
def test_a_rollout_that_was_cut_short_or_damaged_is_played_anew_bit_for_bit(
    tmp_path: Path,
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_damaged: bool,
) -> None:
    with monkeypatch.context() as patch:
        kill_after(patch, 1)
        with pytest.raises(Killed):
            train("frozenlake", [*SMALL_LAKE, "learn.steps=3"], run_dir=tmp_path / "run")
    journal = tmp_path / "run" / "unfinished" / "step-000001.jsonl"
    if is_damaged:
        flip_a_byte(journal)
    else:
        journal.write_bytes(journal.read_bytes()[:-200])
    played = count_played(monkeypatch)
    resume(tmp_path / "run")
    assert len(played) == len(set(played)) == 3 * 6
    assert ("an episode is damaged" in caplog.text) == is_damaged
    assert same_weights(tmp_path / "run", saved)


# --- defect 14: secrets and who may read -----------------------------------------------------------------------------


def test_a_run_keeps_no_secret_and_is_private_to_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, variable = "sk-0123456789", "TURNWISE_ROLLOUT_WORKFLOW_ARGS_API_KEY"
    # The workflow of environments takes no key; those that do are users' own.
    monkeypatch.setattr(EnvironmentWorkflow, "arg_names", ("api_key",))
    (tmp_path / "run").mkdir(mode=0o755)
    console = Console(file=io.StringIO(), width=400)
    settings = [*SEPARATE, "learn.steps=1", f"rollout.workflow_args.api_key={secret}"]
    for mode in ("explore", "train"):
        # The second one has the same settings, and needs no variable to see it.
        train("frozenlake", [*settings, f"run.mode={mode}"], run_dir=tmp_path / "run", console=console)
    assert f"export it as {variable}" in console.file.getvalue()  # type: ignore[attr-defined]
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not [file for file in files if secret.encode() in file.read_bytes()]
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0
    assert (tmp_path / "run" / "config.yaml").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match=variable):
        resume(tmp_path / "run")
    monkeypatch.setenv(variable, secret)
    resume(tmp_path / "run")

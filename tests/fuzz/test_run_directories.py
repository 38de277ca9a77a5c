"""Run directories with damaged files: what is left of them, or a clear error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report.learnt_batches import make_learnt
from turnwise.config.load import dump_settings, load_settings
from turnwise.config.trust import block_untrusted_imports
from turnwise.errors import Finding, TurnwiseError
from turnwise.experience.build import build_experiences
from turnwise.experience.store import SqliteBuffer, inspect_store
from turnwise.protocols import PolicyVersion
from turnwise.report.manifest import Manifest, collect_manifest
from turnwise.report.run_dir import TIME_SECTIONS, RunDirectory, Summary
from turnwise.report.token_log import TokenLog, TokenLogWriter
from turnwise.report.trajectories import TrajectoryJournal, TrajectoryWriter, read_trajectories
from turnwise.run import run_audit as finished_runs
from turnwise.sync.weight_store import FileWeightStore
from turnwise.types import Group, Segment, StopReason, Task, Trajectory, TrajectoryId, Turn

from .damage import damaged

SEGMENT = Segment(
    token_ids=np.arange(6, dtype=np.int32),
    loss_mask=np.array([False, False, True, True, False, True]),
    behavior_logprobs=np.array([0, 0, -1, -0.5, 0, -2], dtype=np.float32),
    turn_ids=np.array([-1, -1, 0, 0, -1, 1], dtype=np.int32),
)
TURNS = tuple(
    Turn(
        index=n, segment_index=0, observation="_P", response_text="Up", actions=("Up",), reward=0.5, penalty=0.0,
        policy_version=1, step=n, info={"a": [1]},
    )
    for n in range(2)
)  # fmt: skip
PLAYED = Trajectory(
    id=TrajectoryId(1, "lake/train/3", 0),
    task=Task(tag="lake", seed=3),
    segments=(SEGMENT,),
    turns=TURNS,
    stop_reason=StopReason.TERMINATED,
    is_success=True,
)
SUMMARY = Summary(
    recipe="r", env="e", seed=0, steps=2, wall_s=1.0, setup_s=0.5, success_before=0.1, success_after=0.2,
    return_before=0.0, return_after=1.0, eval_episodes=4, baselines={"random": 0.1}, tokens_sampled=10,
    tokens_trained=10, time_split=dict.fromkeys(TIME_SECTIONS, 0.1), policy_version=2,
)  # fmt: skip


def read_settings(run: RunDirectory) -> object:
    with block_untrusted_imports():
        return load_settings(run.config)


def read_tokens(run: RunDirectory) -> object:
    record = TokenLog(run.learning_record)
    return [record.read(step) for step in record.steps()]


READERS: dict[str, Callable[[RunDirectory], object]] = {
    "config.yaml": read_settings,
    "manifest.json": lambda run: Manifest.read(run.manifest),
    "metrics.jsonl": RunDirectory.read_metrics,
    "findings.jsonl": RunDirectory.read_findings,
    "summary.json": RunDirectory.read_summary,
    "trajectories/step-000001.jsonl": lambda run: read_trajectories(run.trajectories / "step-000001.jsonl"),
    "learning_record.bin": read_tokens,
    "learning_record.index": read_tokens,
    "unfinished/step-000001.jsonl": lambda run: TrajectoryJournal(run.unfinished, 1).read(),
    "experience.db": lambda run: list(inspect_store(run.experience)),
    "weights/newest.json": lambda run: mailbox_of(run).fetch(),
    "weights/step-000001.safetensors": lambda run: mailbox_of(run).fetch(),
    "weights/request.json": lambda run: mailbox_of(run).requested(),
}


def mailbox_of(run: RunDirectory) -> FileWeightStore:
    return FileWeightStore(run.path / "weights", lambda: None)


@cache
def write_run(path: Path) -> RunDirectory:
    run = RunDirectory.create(
        path, config_yaml=dump_settings(load_settings("frozenlake")), manifest=collect_manifest("frozenlake", 0)
    )
    run.metrics.write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": null}\n')
    run.append_finding(Finding(kind="k", level="warning", where="", message="m", stage="training", step=1, since=1))
    run.write_summary(SUMMARY)
    TrajectoryWriter(run.trajectories).write(1, [PLAYED, PLAYED])
    recorder = TokenLogWriter(run.learning_record, "all")
    for step in (1, 2):
        recorder.write(step, make_learnt(step))
    TrajectoryJournal(run.unfinished, 1).append(PLAYED)
    store = SqliteBuffer(run.experience)
    store.add(build_experiences([Group(task=PLAYED.task, trajectories=(PLAYED,))]))
    store.close()
    mailbox_of(run).post(PolicyVersion(1, 1), {"weight": torch.ones(3)})
    mailbox_of(run).request(1)
    return run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("runs") / "sound")


def test_what_is_not_damaged_is_read(sound: RunDirectory) -> None:
    assert {str(file.relative_to(sound.path)) for file in sound.path.rglob("*") if file.is_file()} >= READERS.keys()
    for read in READERS.values():
        assert read(sound)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_damaged_files_are_told(sound: RunDirectory, name: str, data: st.DataObject) -> None:
    copy = sound.path.parent / f"copy-{name.replace('/', '-')}"
    if not copy.exists():
        shutil.copytree(sound.path, copy)
    (copy / name).write_bytes(data.draw(damaged((sound.path / name).read_bytes())))
    with suppress(TurnwiseError):
        READERS[name](RunDirectory(copy))
    if name.startswith("learning_record"):
        # Reading may mend it.
        shutil.rmtree(copy)


NOT_AUDITED = ("config.yaml", "manifest.json", "findings.jsonl", "weights/request.json")
AUDITED = [name for name in READERS if name not in NOT_AUDITED]
_settings = cache(lambda: load_settings("frozenlake"))


def copy_what_is_read_with(name: str, run: RunDirectory, copy: Path) -> None:
    """A run of that file and of those that are read with it: ten thousand times over, the sound rest takes long."""

    def first_word(file: str) -> str:
        return file.split("/")[0].split(".")[0]

    kept = {first_word(name), "summary", *(["learning_record"] if name == "summary.json" else [])}
    for file in READERS:
        if first_word(file) in kept:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run.path / file, copy / file)


@pytest.mark.parametrize("name", AUDITED)
def test_what_is_read_with_a_file_is_enough_to_audit_it(sound: RunDirectory, name: str, tmp_path: Path) -> None:
    copy_what_is_read_with(name, sound, tmp_path)
    found = [kind for kind, _ in finished_runs._look(RunDirectory(tmp_path), _settings())]
    assert name == "metrics.jsonl" or set(found) > {"metrics"}


@pytest.mark.parametrize("name", AUDITED)
@given(data=st.data())
def test_the_audit_of_a_damaged_run_tells_or_passes(sound: RunDirectory, name: str, data: st.DataObject) -> None:
    copy = sound.path.parent / f"audited-{name.replace('/', '-')}"
    if not copy.exists():
        copy_what_is_read_with(name, sound, copy)
    (copy / name).write_bytes(data.draw(damaged((sound.path / name).read_bytes())))
    with suppress(TurnwiseError):
        # Settings take long to load, and are read by another test.
        assert list(finished_runs._look(RunDirectory(copy), _settings()))

"""Run directories with damaged files: what is left of them, or a clear error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.report.learnt_batches import make_learnt
from turnwise.config.load import dump_settings, load_settings
from turnwise.config.trust import only_looking
from turnwise.errors import TurnwiseError
from turnwise.report.journal import TrajectoryJournal
from turnwise.report.learning_record.file import LearningRecord, LearningRecorder
from turnwise.report.manifest import Manifest, collect_manifest
from turnwise.report.metrics import TIME_SECTIONS
from turnwise.report.run_dir import RunDirectory
from turnwise.report.summary import Summary
from turnwise.report.trajectories import TrajectoryWriter, read_trajectories
from turnwise.report.watch import Finding
from turnwise.types import Segment, StopReason, Task, Trajectory, TrajectoryId, Turn

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
    with only_looking():
        return load_settings(run.config)


def read_tokens(run: RunDirectory) -> object:
    record = LearningRecord(run.learning_record)
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
}


@cache
def write_run(path: Path) -> RunDirectory:
    run = RunDirectory.create(
        path, config_yaml=dump_settings(load_settings("frozenlake")), manifest=collect_manifest("frozenlake", 0)
    )
    run.metrics.write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": null}\n')
    run.append_finding(Finding(step=1, kind="k", since=1, is_collapse=False, message="m"))
    run.write_summary(SUMMARY)
    TrajectoryWriter(run.trajectories).write(1, [PLAYED, PLAYED])
    recorder = LearningRecorder(run.learning_record, "all")
    for step in (1, 2):
        recorder.write(step, make_learnt(step))
    TrajectoryJournal(run.unfinished, 1).append(PLAYED)
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

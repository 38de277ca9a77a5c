from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from turnwise.errors import Finding, RunError
from turnwise.report import run_dir as run_dir_module
from turnwise.report.manifest import Manifest
from turnwise.report.run_dir import RunDirectory, new_run_path


@pytest.fixture
def run(tmp_path: Path, manifest: Manifest) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "a", config_yaml="learn: {steps: 3}\n", manifest=manifest)


def write_steps(run: RunDirectory, *steps: int) -> None:
    run.metrics.write_text("".join(json.dumps({"step": step, "learn/loss": 0.5}) + "\n" for step in steps))


def test_create_writes_config_and_manifest_and_open_finds_them(run: RunDirectory, manifest: Manifest) -> None:
    opened = RunDirectory.open(run.path)

    assert opened.config.read_text() == "learn: {steps: 3}\n"
    assert Manifest.read(opened.manifest) == manifest
    assert opened.read_metrics() == []
    assert all(folder.is_dir() for folder in (opened.trajectories, opened.checkpoints, opened.plots))


@pytest.mark.parametrize("left_over", ["config.yaml", "metrics.jsonl"])
def test_create_refuses_a_folder_that_holds_a_run(tmp_path: Path, manifest: Manifest, left_over: str) -> None:
    (tmp_path / left_over).write_text("precious")

    with pytest.raises(RunError, match=r"already holds a run.*--resume"):
        RunDirectory.create(tmp_path, config_yaml="", manifest=manifest)

    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(left_over, "precious")]


def test_create_accepts_an_empty_folder(tmp_path: Path, manifest: Manifest) -> None:
    assert RunDirectory.create(tmp_path, config_yaml="", manifest=manifest).config.exists()


def test_create_refuses_a_file(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match=r"is a file.*--run-dir"):
        RunDirectory.create(tmp_path / "taken", config_yaml="", manifest=manifest)


def test_create_says_why_a_folder_cannot_be_made(tmp_path: Path, manifest: Manifest) -> None:
    # A file in place of the parent fails for root too, unlike missing permissions.
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match=r"cannot be made: not a directory.*--run-dir"):
        RunDirectory.create(tmp_path / "taken" / "run", config_yaml="", manifest=manifest)


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"a folder without config\.yaml"):
        RunDirectory.open(tmp_path)
    with pytest.raises(RunError, match="found a file"):
        RunDirectory.open(tmp_path / "file")
    with pytest.raises(RunError, match="nothing there"):
        RunDirectory.open(tmp_path / "missing")


def test_read_metrics_drops_a_torn_last_line(run: RunDirectory) -> None:
    write_steps(run, 1, 2)
    with run.metrics.open("a") as file:
        file.write('{"step": 3, "learn/lo')

    assert [row["step"] for row in run.read_metrics()] == [1, 2]


def test_read_metrics_keeps_a_complete_last_line_without_a_line_break(run: RunDirectory) -> None:
    run.metrics.write_text('{"step": 1}\n{"step": 2}')
    assert run.read_metrics() == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("bad", ['{"step": 1, "lea', "[1, 2]", '{"learn/loss": 1.0}'])
def test_read_metrics_refuses_damage_before_the_last_line(run: RunDirectory, bad: str) -> None:
    run.metrics.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    with pytest.raises(RunError, match="line 2 is damaged"):
        run.read_metrics()


def test_read_metrics_leaves_out_values_that_were_not_finite(run: RunDirectory) -> None:
    run.metrics.write_text('{"step": 1, "learn/grad_norm": null, "learn/loss": 0.5}\n')
    assert run.read_metrics() == [{"step": 1, "learn/loss": 0.5}]


def test_reopen_forgets_later_steps_and_the_torn_line(run: RunDirectory) -> None:
    write_steps(run, 1, 2, 3, 4)
    with run.metrics.open("a") as file:
        file.write('{"step": 5, "lea')
    for step in (2, 3):
        (run.trajectories / f"step-{step:06d}.jsonl").write_text("")
    run.step_checkpoint(4).mkdir()

    reopened = RunDirectory.reopen(run.path, step=2)

    assert reopened.metrics.read_text().endswith('"learn/loss": 0.5}\n')
    assert [row["step"] for row in reopened.read_metrics()] == [1, 2]
    assert [file.name for file in reopened.trajectories.iterdir()] == ["step-000002.jsonl"]
    assert reopened.step_checkpoint(4).is_dir()
    RunDirectory.reopen(run.path, step=-1)
    resumes = [json.loads(line) for line in run.resumes.read_text().splitlines()]
    assert [row["step"] for row in resumes] == [2, -1]
    assert all(datetime.fromisoformat(row["at"]).tzinfo for row in resumes)


def finding(step: int) -> Finding:
    return Finding(
        kind="low_entropy", level="warning", where="", message="entropy is 0.01", stage="training", step=step, since=1
    )


def test_findings_are_read_as_they_were_told_and_reopen_forgets_later_ones(run: RunDirectory) -> None:
    assert run.read_findings() == []
    assert not RunDirectory.reopen(run.path, step=2).findings.exists()
    for step in (2, 3):
        run.append_finding(finding(step))
    with run.findings.open("a") as file:
        file.write('{"step": 4, "ki')
    assert run.read_findings() == [finding(2), finding(3)]
    assert RunDirectory.reopen(run.path, step=2).read_findings() == [finding(2)]
    run.findings.write_text('{"step": 4}\n')
    with pytest.raises(RunError, match=r"findings\.jsonl is damaged"):
        run.read_findings()


def test_reopen_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        RunDirectory.reopen(tmp_path, step=1)


def test_latest_checkpoint_is_the_highest_finished_step(run: RunDirectory) -> None:
    assert run.latest_checkpoint() is None
    for name in ("step-000009", "step-000100", "step-1000000", "step-2000000.tmp"):
        (run.checkpoints / name).mkdir()
    (run.checkpoints / "step-3000000").write_text("a file is no checkpoint")

    assert run.latest_checkpoint() == run.step_checkpoint(1_000_000)


def test_a_removed_checkpoint_is_gone_even_where_an_earlier_removal_was_cut_off(run: RunDirectory) -> None:
    for name in ("step-000001", "step-000002", ".step-000003.0123abcd.unfinished"):
        (run.checkpoints / name / "policy").mkdir(parents=True)
    run.remove_checkpoint(2)
    assert run.checkpoint_steps() == [1]
    assert [folder.name for folder in run.checkpoints.iterdir()] == ["step-000001"]


def test_step_checkpoint_has_six_digits(run: RunDirectory) -> None:
    assert run.step_checkpoint(40) == run.path / "checkpoints" / "step-000040"


def test_summary_round_trip_and_absence(run: RunDirectory, make_summary) -> None:
    with pytest.raises(RunError, match=r"no summary\.json"):
        run.read_summary()
    run.write_summary(make_summary())
    assert run.read_summary() == make_summary()


def test_new_run_path_is_dated_and_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Noon(run_dir_module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 12, 0, 0)

    monkeypatch.setattr(run_dir_module, "datetime", Noon)
    names = []
    for _ in range(3):
        path = new_run_path(tmp_path, "frozenlake")
        path.mkdir()
        names.append(path.name)
    assert names == ["frozenlake-20260102-120000", "frozenlake-20260102-120000-2", "frozenlake-20260102-120000-3"]

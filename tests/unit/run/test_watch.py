"""A run that collapses: it is told, and where that is asked for the run ends with the policy from before."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from turnwise.checks import episodes as first_look
from turnwise.learn.trainer import Trainer
from turnwise.report.run_dir import RunDirectory, Summary
from turnwise.report.trajectories import read_trajectories
from turnwise.run import run_recorder as recording
from turnwise.run.api import Run, evaluate, resume, train
from turnwise.run.checkpoints import Checkpoints
from turnwise.types import Batch, StepReport

from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow

WATCH = [
    "watch.window=2",
    "watch.patience=2",
    "learn.optim.schedule=constant",
    "learn.optim.warmup_steps=0",
    "eval.temperature=1.0",  # greedy play has no log-probabilities to compare
]
COLLAPSES_AT = 6
"""The step from which the small runs below have no entropy left."""


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


@pytest.fixture
def collapsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one step on the learner is hit so hard that nothing is left of its policy, and its metrics show it."""
    plain = Trainer.step

    def ruin(self: Trainer, batch: Batch) -> StepReport:
        report = plain(self, batch)
        metrics: Mapping[str, float] = {**report.metrics, "learn/entropy": 1.0}
        if report.policy_version >= COLLAPSES_AT:
            with torch.no_grad():
                for weights in self.actor.model.parameters():
                    weights.mul_(0.5)
            metrics = {**metrics, "learn/entropy": 1e-6}
        return StepReport(policy_version=report.policy_version, metrics=metrics)

    monkeypatch.setattr(Trainer, "step", ruin)
    # The small run succeeds at chance; what counts here is that it does not succeed.
    measured = recording.StepTimes.metrics
    monkeypatch.setattr(
        recording.StepTimes,
        "metrics",
        lambda self, step: (
            measured(self, step) | {"rollout/success": 0.0, "rollout/return": 0.0, "rollout/rewarded": 1.0}
        ),
    )


def small(path: Path, *overrides: str, console: Console | None = None) -> Run:
    return train("frozenlake", [*SMALL_LAKE, *WATCH, "learn.steps=9", *overrides], run_dir=path, console=console)


def watched(summary: Summary) -> list[Mapping[str, Any]]:
    """What the watch has found; a run this small also has nothing to learn from at first."""
    return [told for told in summary.findings if int(told["step"]) > 1]


def weights(run: Run) -> dict[str, Any]:
    return load_file(run.policy / "model.safetensors")


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def last_logprobs(run: Run) -> list[list[float]]:
    """Of all that was sampled in the last evaluation, which tells policies apart that score the same."""
    trajectories = read_trajectories(run.path / "trajectories" / "eval" / "step-000004.jsonl")
    return [segment.behavior_logprobs.tolist() for t in trajectories for segment in t.segments]


@pytest.mark.usefixtures("collapsing")
def test_a_collapsed_run_ends_with_the_policy_from_before(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=500)
    run = small(tmp_path / "a", "watch.stop=collapse", console=console)
    summary = run.summary
    assert summary.stopped is not None
    assert (summary.stopped["step"], summary.stopped["kind"]) == (COLLAPSES_AT + 1, "low_entropy")
    # Saved at 2, 4 and 6; the trouble began with 6.
    assert summary.steps == summary.policy_version == summary.stopped["returned_to_step"] == 4
    assert [(told["step"], told["kind"]) for told in watched(summary)] == [(COLLAPSES_AT + 1, "low_entropy")]

    directory = RunDirectory.open(run.path)
    assert directory.latest_checkpoint() == directory.step_checkpoint(4)
    assert [finding.since for finding in directory.read_findings() if finding.step > 1] == [COLLAPSES_AT]
    rows = run.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6, 7]  # the collapse stays on record
    assert [row["watch/findings"] for row in rows[1:]] == [0, 0, 0, 0, 0, 0, 1]
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 7, low_entropy: entropy is" in output
    assert "stopped at step 7 (low_entropy); the result is the policy of step 4" in output

    # The result is what a run of four steps gives, in the summary, on disk and for who plays with it.
    short = small(tmp_path / "short", "learn.steps=4")
    assert same(weights(run), weights(short))
    for name in ("success_after", "return_after", "tokens_sampled", "tokens_trained", "policy_version"):
        assert getattr(summary, name) == getattr(short.summary, name)
    assert evaluate(run).mean_return == summary.return_after
    assert last_logprobs(run) == last_logprobs(short)


@pytest.mark.usefixtures("collapsing")
def test_without_stop_the_run_is_told_and_goes_on(tmp_path: Path) -> None:
    run = small(tmp_path / "a")
    assert (run.summary.steps, run.summary.stopped) == (9, None)
    assert [told["kind"] for told in watched(run.summary)] == ["low_entropy"]
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["step-000009"]


@pytest.mark.usefixtures("collapsing")
def test_checkpoints_that_were_asked_for_stay_up_to_the_good_one(tmp_path: Path) -> None:
    run = small(tmp_path / "a", "watch.stop=collapse", "report.checkpoint_every=1")
    assert RunDirectory.open(run.path).checkpoint_steps() == [0, 1, 2, 3, 4, 5]
    assert run.summary.steps == 5


@pytest.mark.usefixtures("collapsing")
def test_a_run_that_is_killed_and_resumed_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    plain = recording.ProgressDisplay.update

    def kill(self: Any, step: int, *rest: Any) -> None:
        plain(self, step, *rest)
        if step == COLLAPSES_AT + 1:
            raise Killed

    straight = small(tmp_path / "straight", "watch.stop=collapse")
    with monkeypatch.context() as patch:
        patch.setattr(recording.ProgressDisplay, "update", kill)
        with pytest.raises(Killed):
            small(tmp_path / "killed", "watch.stop=collapse")
    killed = RunDirectory.open(tmp_path / "killed")
    assert killed.read_findings()[-1].kind == "low_entropy"  # told, and not yet acted upon
    resumed = resume(killed.path)
    assert resumed.summary.stopped == straight.summary.stopped
    assert killed.findings.read_text() == (straight.path / "findings.jsonl").read_text()
    assert same(weights(resumed), weights(straight))


def test_a_sound_run_keeps_few_checkpoints_and_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[int]] = []
    plain = Checkpoints._prune

    def count(self: Any) -> None:
        plain(self)
        kept.append(RunDirectory(tmp_path / "watched").checkpoint_steps())

    monkeypatch.setattr(Checkpoints, "_prune", count)
    # Success that rises a little with every step: the newest policy is always the best.
    measured = recording.StepTimes.metrics
    monkeypatch.setattr(
        recording.StepTimes,
        "metrics",
        lambda self, step: measured(self, step) | {f"rollout/{n}": step.step / 20 for n in ("success", "return")},
    )
    watched = small(tmp_path / "watched", "watch.stop=collapse", "watch.max_grad_ratio=1e9")
    assert kept == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert watched.summary.stopped is None
    assert watched.policy.parent.name == "step-000009"
    assert same(weights(watched), weights(small(tmp_path / "plain")))


def test_findings_are_in_the_run_directory_only_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_look, "check_rollout", lambda *_: [])
    run = train("frozenlake", SMALL_LAKE, run_dir=tmp_path / "run")
    assert not (run.path / "findings.jsonl").exists()
    assert json.loads((run.path / "summary.json").read_text())["findings"] == []

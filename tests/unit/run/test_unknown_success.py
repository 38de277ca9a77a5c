"""An agent that earns a little for every word and never says whether it reached its goal: unknown, everywhere."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import turnwise as tw
from turnwise.checks.episodes import check_policy_probe, count_episodes
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.report.comparison import compare, read_side
from turnwise.report.document import show, to_markdown
from turnwise.report.evaluation import read_eval, results_of
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import read_trajectories
from turnwise.rollout.env_specs import main_env
from turnwise.run.api import Run, resume, train
from turnwise.run.evaluation import EvalReport, EvalStats, evaluate_policy, make_page, to_document
from turnwise.run.export_model import write_card
from turnwise.run.training_run import _most_telling
from turnwise.types import Group, StopReason, Task, Trajectory, TrajectoryId

from ...small_run import SMALL_LAKE, without_plots

QUIET = Console(quiet=True)
SILENT = [*SMALL_LAKE, "rollout.workflow=tests.unit.run.test_unknown_success:Wordy", "eval.every=1"]


class Wordy(tw.Workflow):
    """One reply; 0.01 a word."""

    async def run(self) -> Trajectory:
        (reply,) = await self.model.chat_async([{"role": "user", "content": "Say something."}])
        return self.finish(0.01 * len(reply.response_text.split()) + 0.01)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("frozenlake", SILENT, run_dir=tmp_path_factory.mktemp("silent") / "run")


def shown(report: EvalReport) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    show(to_document(report), console=console)
    return console.export_text()


def test_a_run_earns_and_claims_no_success(run: Run) -> None:
    rows = run.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert not {name for name in row if name in ("rollout/success", "eval/success", "rollout/pass_at_k")}
        assert row["eval/return"] > 0
        assert row["eval/success_unknown"] == 1.0
    assert all(row["rollout/success_unknown"] == 1.0 and row["rollout/return"] > 0 for row in rows[1:])
    summary = json.loads((run.path / "summary.json").read_text())
    names = ("success_before", "success_after", "success_before_interval", "success_after_interval")
    assert {summary[name] for name in names} == {None}
    assert summary["return_after"] > 0
    assert (summary["envs"]["frozen_lake"]["success"], summary["eval_episodes"]) == (None, 5)
    # What was measured of others is still there.
    assert summary["baselines"]["oracle"] == 1.0


def test_a_run_that_goes_on_keeps_the_return_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    run = train("frozenlake", [*SILENT, "report.checkpoint_every=1"], run_dir=tmp_path / "run")
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    rows[0]["eval/return"] = 0.375
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(run.path / "checkpoints" / "step-000002")
    summary = resume(run.path).summary
    assert (summary.return_before, summary.success_before, summary.success_before_interval) == (0.375, None, None)
    assert "warm_start" not in summary.baselines


@pytest.mark.slow
def test_through_the_store_on_disk_it_stays_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    apart = ["buffer.type=sqlite", "buffer.train_batch_size=3", "buffer.unit=groups", "sync.method=checkpoint"]
    for mode in ("explore", "train", "eval"):
        train("frozenlake", [*SILENT, *apart, "eval.every=0", f"run.mode={mode}"], run_dir=tmp_path / "run")
    rollouts = [json.loads(line) for line in (tmp_path / "run" / "explorer.jsonl").read_text().splitlines()]
    assert [row["rollout/success_unknown"] for row in rollouts] == [1.0, 1.0]
    summary = RunDirectory(tmp_path / "run").read_summary()
    assert (summary.steps, summary.success_after) == (2, None)
    assert summary.return_after is not None
    told = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (told["success"], told["success_interval"], told["return"]) == (None, None, summary.return_after)


def test_doctor_tells_what_it_does_not_know() -> None:
    task = Task(tag="frozen_lake", seed=1)
    ended = {"task": task, "segments": (), "turns": (), "stop_reason": StopReason.MAX_TURNS, "is_success": None}
    plays = tuple(Trajectory(id=TrajectoryId(0, task.id, n), **ended) for n in range(2))
    settings = load_settings("frozenlake", SILENT)
    # Only replies are read with a template, and there are none.
    probe = count_episodes([Group(task=task, trajectories=plays)], template=None, max_response_tokens=9, seconds=0.0)  # type: ignore[arg-type]
    assert probe.success is None
    probe = replace(probe, return_std=0.1)
    told = check_policy_probe(
        "env", main_env(settings), probe, settings, is_taught_first=False, is_beginner=False, has_rewards=True
    )
    messages = {finding.where: finding.message for finding in told}
    assert "success unknown" in messages["rewards of env"]
    assert "none succeeds" not in messages["turns of env"]


def test_the_episodes_on_disk_say_nothing_and_come_back_so(run: Run) -> None:
    (path,) = (run.path / "trajectories" / "eval").glob("*.jsonl")
    assert {trajectory.is_success for trajectory in read_trajectories(path)} == {None}
    saved = read_eval(RunDirectory(run.path).evals / "step-000002")
    assert {play.is_success for task in saved.tasks for play in task.plays} == {None}


def test_the_closing_words_speak_of_the_return(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "frozenlake", *SILENT, "learn.steps=1", "--run-dir", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "success unknown  return 0.0" in text  # while it runs, and of the episode that is shown
    panel = text[text.index("Training finished: frozenlake") :]
    assert "return  0.0" in panel
    assert "unknown: not reported by the workflow" in panel
    assert [line.split()[-2] for line in panel.splitlines() if "this run" in line] == ["unknown"]


def test_eval_says_unknown_gives_the_return_and_blames_nobody(run: Run) -> None:
    words = ["eval.episodes=4", "eval.samples=2", "eval.temperature=1"]
    report = evaluate_policy(str(run.path), words, QUIET, recipe=None, split="eval").report
    assert (report.success, report.figures.unknown, report.figures.pass_at, report.reasons) == (None, 8, {}, ())
    text = shown(report)
    assert "success  unknown: the workflow does not report it (is_success); see the return" in text
    assert "pass@" not in text
    assert "%" not in text.partition("ended")[0].replace("0% of all turns", "")
    row = json.loads(json.dumps(report.to_dict()))
    assert (row["success"], row["success_interval"], row["average_at"]) == (None, None, {"2": None})
    assert row["return"] > 0
    assert "| unknown |" in to_markdown(make_page([report]))


def test_shares_are_over_the_plays_that_say_it(run: Run) -> None:
    (path,) = (run.path / "trajectories" / "eval").glob("*.jsonl")
    played = read_trajectories(path)
    said = [
        replace(t, is_success=is_success) for t, is_success in zip(played, (True, False, None, True, None), strict=True)
    ]
    figures = EvalStats.of(results_of(said))
    assert (figures.episodes, figures.unknown, figures.success) == (5, 2, pytest.approx(2 / 3))
    assert figures.pass_at == {1: pytest.approx(2 / 3)}
    # Wilson's, of 2 out of 3.
    assert figures.success_interval == pytest.approx((0.2077, 0.9385), abs=1e-3)
    assert _most_telling(said) is said[0]
    richest = max(played, key=lambda t: t.episode_return)
    assert _most_telling(played).episode_return == richest.episode_return


def test_compare_goes_by_the_return(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["eval.episodes=8"]
    mine = evaluate_policy(str(run.path), settings, QUIET, recipe=None, split="eval")
    mine.save(tmp_path / "one")
    richer = replace(
        mine,
        trajectories=mine.trajectories,
        report=replace(mine.report, tasks=results_of(_paid_more(mine.trajectories))),
    )
    richer.save(tmp_path / "two")
    found = compare(read_side(str(tmp_path / "one")), read_side(str(tmp_path / "two")))
    assert (found.measure, found.unknown, found.success, found.difference, found.interval) == (
        "return",
        8,
        None,
        None,
        None,
    )
    assert found.return_difference == pytest.approx(1.0)
    assert found.p_value == pytest.approx(2 / 2**8)  # eight tasks, all better
    assert (found.num_better, found.num_worse) == (8, 0)
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    text = capsys.readouterr().out
    assert "success  unknown: one side does not report it (is_success); the rest is about the return" in text
    assert "8 better, 0 worse, 0 equal" in text
    assert main(["compare", str(tmp_path / "one"), str(tmp_path / "one"), "--json"]) == 0
    (same,) = json.loads(capsys.readouterr().out)
    assert (same["p_value"], same["differing"], same["success"]) == (1.0, [], None)


def _paid_more(played: tuple[Trajectory, ...]) -> list[Trajectory]:
    return [replace(t, turns=(replace(t.turns[0], reward=t.turns[0].reward + 1.0), *t.turns[1:])) for t in played]


def test_the_model_card_says_unknown(run: Run) -> None:
    card = write_card(load_settings("frozenlake", SILENT), RunDirectory(run.path), 2)
    assert "| success | unknown |\n| return | 0.0" in card
    assert "| return before training | 0.0" in card

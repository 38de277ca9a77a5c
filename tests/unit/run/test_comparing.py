"""`turnwise compare`: paired by task, over seeds, and only where tasks are the same."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from turnwise.cli import build_parser, main
from turnwise.commands.inspect import view
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError, RunError
from turnwise.report.comparison import compare, read_side
from turnwise.report.evaluation import find_evals, read_eval, results_of
from turnwise.report.trajectories import read_trajectories
from turnwise.run.api import Run
from turnwise.run.evaluation import evaluate_rule
from turnwise.view.server import ANSWERS, RunCollection


@pytest.fixture(scope="module")
def evals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evals")
    for rule in ("random", "oracle"):
        settings = load_settings("frozenlake", ["eval.episodes=30"])
        evaluate_rule(rule, settings, "eval").save(folder / rule)
    for seed in (1, 2, 3):
        settings = load_settings("frozenlake", ["eval.episodes=30", "eval.samples=2", "eval.temperature=1"])
        evaluate_rule("random", settings, "eval").save(folder / "seeds" / f"random-{seed}")
        evaluate_rule("oracle", settings, "eval").save(folder / "best" / f"oracle-{seed}")
    return folder


def test_the_difference_is_that_of_the_same_tasks(evals: Path) -> None:
    found = compare(read_side(str(evals / "random")), read_side(str(evals / "oracle")))
    one, two = (read_eval(evals / name) for name in ("random", "oracle"))
    shares = [sum(task.share for task in saved.tasks) / 30 for saved in (one, two)]
    assert found.success == pytest.approx(tuple(shares))
    assert found.difference == pytest.approx(shares[1] - shares[0])
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.p_value < 0.001
    assert (found.tasks, found.unpaired, found.seeds) == (30, 0, (1, 1))
    lost = {task.task.id for task in one.tasks if not task.num_successes}
    assert {task.task for task in found.differing} == lost
    assert (found.num_better, found.num_worse) == (len(lost), 0)
    assert len(found.episodes) == 2
    same = compare(read_side(str(evals / "random")), read_side(str(evals / "random")))
    assert (same.difference, same.p_value, same.differing) == (0, 1.0, ())


def test_seeds_are_a_folder_or_joined_by_commas(evals: Path) -> None:
    folder = compare(read_side(str(evals / "seeds")), read_side(str(evals / "best")))
    joined = compare(
        read_side(",".join(str(path) for path in find_evals(evals / "seeds"))), read_side(str(evals / "best"))
    )
    assert folder.seeds == joined.seeds == (3, 3)
    assert folder.difference == joined.difference
    # All three evaluations of a rule are the same play: dealt anew, the two deals that part the sides are the largest.
    assert folder.p_value_over_seeds == pytest.approx(2 / 20)


def test_every_play_of_the_last_evaluation_of_a_run_is_kept(finished: Run) -> None:
    last = read_eval(find_evals(finished.path / "evals")[-1])
    assert last.trajectories is not None
    assert results_of(read_trajectories(last.trajectories)) == last.tasks


def test_a_finished_run_can_be_compared_as_it_is(finished: Run, evals: Path) -> None:
    side = read_side(str(finished.path))
    saved = side.evals[0]
    assert len(saved.tasks) == finished.summary.eval_episodes
    assert sum(task.share for task in saved.tasks) / len(saved.tasks) == pytest.approx(finished.summary.success_after)
    found = compare(side, read_side(str(evals / "oracle")))
    assert found.tasks == 5
    assert found.unpaired == 25


def test_other_worlds_are_refused(evals: Path, tmp_path: Path) -> None:
    larger = load_settings("frozenlake", ["eval.episodes=3", "env.size=6"])
    evaluate_rule("oracle", larger, "eval").save(tmp_path / "larger")
    with pytest.raises(ConfigError, match=r"frozen_lake\.size is .* not the same"):
        compare(read_side(str(evals / "oracle")), read_side(str(tmp_path / "larger")))
    others = load_settings("frozenlake", ["eval.episodes=3", "eval.first_seed=900"])
    evaluate_rule("oracle", others, "eval").save(tmp_path / "others")
    with pytest.raises(ConfigError, match="have no task in common"):
        compare(read_side(str(evals / "oracle")), read_side(str(tmp_path / "others")))


@pytest.mark.parametrize("row", [{"plays": [1.5]}, {"plays": ["text"], "task": 3}, {"plays": [None]}, 7])
def test_a_damaged_row_of_an_evaluation_is_named(tmp_path: Path, row: object) -> None:
    report = {"target": "a", "recipe": "b", "seed": 0, "worlds": {}, "tasks": [row]}
    (tmp_path / "eval.json").write_text(json.dumps(report))
    with pytest.raises(RunError, match="is no evaluation"):
        read_eval(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match="does not exist"):
        read_side(str(tmp_path / "nothing"))
    with pytest.raises(RunError, match="neither a run nor an evaluation"):
        read_side(str(tmp_path))
    (tmp_path / "eval.json").write_text('{"target": 1}')
    with pytest.raises(RunError, match="is no evaluation"):
        read_side(str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{}")
    with pytest.raises(RunError, match="Make one: turnwise eval"):
        read_side(str(tmp_path / "run"))
    assert main(["compare", "alone"]) == 2
    assert "at least two" in capsys.readouterr().err


def test_the_command_prints_words_json_and_markdown(
    evals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", str(evals / "random"), str(evals / "oracle"), str(evals / "best")]
    assert main([*words, "--markdown", str(tmp_path / "page.md")]) == 0
    text = capsys.readouterr().out
    assert "p-value" in text
    assert "frozen_lake/eval/" in text
    page = (tmp_path / "page.md").read_text()
    assert "| task | first | second |" in page
    assert "\n-  " not in page
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    assert rows[0]["better"] == len(rows[0]["differing"])
    assert sum(len(row["differing"]) for row in rows) == page.count("\n| frozen_lake/eval/") > 20


@pytest.fixture
def two_runs(evals: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Runs of one name in two folders, each with a saved evaluation."""
    runs = tmp_path / "one" / "lake", tmp_path / "other" / "lake"
    for run, rule in zip(runs, ("random", "oracle"), strict=True):
        shutil.copytree(evals / rule, run / "evals" / f"{rule} & co")
        (run / "config.yaml").write_text("env: {type: frozen_lake}")
    return runs


def test_tasks_that_differ_are_linked_to_the_page_that_shows_both_plays(two_runs: tuple[Path, Path]) -> None:
    found = compare(*(read_side(str(run)) for run in two_runs))
    assert found.runs == tuple(map(str, two_runs))
    shelf = RunCollection([Path(run) for run in found.runs])
    for task in found.differing:
        assert task.link.startswith("#/task?")
        words = dict(parse_qsl(task.link.partition("?")[2]))
        told = [
            ANSWERS["evaluated"](shelf, {"run": words[side], "eval": words[f"{side}_eval"], "task": words["task"]})
            for side in ("first", "second")
        ]
        assert [side["eval"] for side in told] == ["random & co", "oracle & co"]
        assert all(play["task"]["seed"] == int(task.task.split("/")[-1]) for side in told for play in side["plays"])
        assert [side["plays"][0]["is_success"] for side in told] == [bool(task.first), bool(task.second)]


def test_links_name_runs_as_the_page_does_also_those_of_here_and_behind_a_symbolic_link(
    two_runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two_runs[0], two_runs[1].rename(tmp_path / "other" / "pond")
    (tmp_path / "latest").symlink_to(other)
    monkeypatch.chdir(one)
    for sides in ((".", "../../other/pond"), (".", str(tmp_path / "latest")), ("evals/random & co", "../../latest")):
        found = compare(*map(read_side, sides))
        shelf = RunCollection([Path(run) for run in found.runs])
        words = dict(parse_qsl(found.differing[0].link.partition("?")[2]))
        assert (words["first"], words["second"]) == ("lake", "pond")
        assert [shelf.get(words[side]).files.path for side in ("first", "second")] == [one, other]


def test_the_words_end_with_the_command_that_opens_the_page_there(
    two_runs: tuple[Path, Path], evals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, two_runs)]) == 0
    said = capsys.readouterr().out
    line = next(line for line in said.splitlines() if line.startswith("side by side"))
    command = shlex.split(line.removeprefix("side by side"))
    assert command[:2] == ["turnwise", "view"]
    options = build_parser().parse_args(command[1:])
    assert options.runs == list(map(str, two_runs))
    assert options.at.startswith("#/task?task=frozen_lake%2Feval%2F")
    # Without runs there is no page.
    assert main(["compare", str(evals / "random"), str(evals / "oracle")]) == 0
    assert "side by side" not in capsys.readouterr().out


def test_what_a_page_cannot_show_of_an_evaluation_is_said(two_runs: tuple[Path, Path]) -> None:
    shelf, about = RunCollection([two_runs[0]]), {"run": "lake", "task": "frozen_lake/eval/1"}
    with pytest.raises(RunError, match=r"no evaluation '\.\./\.\./other'"):
        ANSWERS["evaluated"](shelf, {**about, "eval": "../../other"})
    with pytest.raises(RunError, match="were not kept"):
        ANSWERS["evaluated"](shelf, {**about, "task": "frozen_lake/eval/99999999"})
    with pytest.raises(RunError, match=r"expected a place on the page"):
        view([two_runs[0]], at="http://evil.example")

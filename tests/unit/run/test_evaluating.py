"""`turnwise eval`: what was sampled, how sure the share is, and why nothing succeeded."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from turnwise.cli import main
from turnwise.commands.eval import SUITES
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError
from turnwise.loop.policies import find_policy
from turnwise.report.document import show, to_markdown
from turnwise.report.evaluation import read_eval
from turnwise.report.trajectories import read_trajectories
from turnwise.run.api import Run, train
from turnwise.run.evaluation import EvalReport, evaluate_policy, evaluate_rule, make_page, to_document

from ...small_run import SMALL_LAKE, without_plots

QUIET = Console(quiet=True)


def evaluate(target: object, *words: str, recipe: str | None = None) -> EvalReport:
    return evaluate_policy(str(target), ["eval.episodes=4", *words], QUIET, recipe=recipe, split="eval").report


def shown(report: EvalReport) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    show(to_document(report), console=console)
    return console.export_text()


def test_replies_are_shown_with_whether_they_were_understood(finished: Run) -> None:
    report = evaluate(finished.path)
    assert 1 <= len(report.replies) <= 3
    for sample in report.replies:
        assert sample.tokens >= 1
        assert sample.observation
        assert sample.understood == bool(sample.actions)
    assert sum(report.stop_reasons.values()) == 4
    text = shown(report)
    assert "Reply 1:" in text
    assert "95 % interval" in text


def test_json_has_the_interval_the_invalid_share_and_the_replies(finished: Run) -> None:
    row = json.loads(json.dumps(evaluate(finished.path).to_dict()))
    low, high = row["success_interval"]
    assert 0 <= low <= row["success"] <= high <= 1
    assert 0 <= row["invalid"] <= 1
    assert row["replies"]
    assert "return" in row


def test_overrides_change_how_it_plays(finished: Run) -> None:
    """Of the built-in model, which answers with one token: a budget of 1 leaves no room for the end of turn."""
    cut = evaluate(finished.path, "context.max_response_tokens=1", "rollout.max_turns=1")
    assert all(sample.tokens == 1 for sample in cut.replies)
    assert all(sample.cut for sample in cut.replies)
    assert set(cut.stop_reasons) <= {"max_turns", "terminated", "max_actions"}


def test_where_nothing_succeeds_the_format_and_the_budgets_are_named(finished: Run) -> None:
    words = ["context.answer.type=think_answer", "context.max_response_tokens=2", "rollout.max_turns=1"]
    report = evaluate(finished.path, *words)
    assert (report.success, report.invalid) == (0.0, 1.0)
    told = " ".join(report.reasons)
    assert "0 of 4 turns have a valid answer (think_answer)" in told
    assert "replies are cut at context.max_response_tokens = 2" in told
    assert "context.instructions is 'none'" in told
    assert "reason" in shown(report)
    explained = " ".join(evaluate(finished.path, *words, "context.instructions=full").reasons)
    assert "context.instructions" not in explained


def test_a_context_that_is_too_small_is_named(finished: Run) -> None:
    report = evaluate(finished.path, "context.max_tokens=8", "context.max_response_tokens=2")
    assert "context.max_tokens = 8" in " ".join(report.reasons)


def test_rules_have_an_interval_and_no_replies() -> None:
    report = evaluate_rule("oracle", load_settings("frozenlake", {"eval.episodes": 3}), "eval").report
    row = report.to_dict()
    assert row["success_interval"] == pytest.approx([0.4385, 1.0], abs=1e-3)
    assert (row["invalid"], row["replies"], row["tokens"]) == (None, [], None)
    assert "Reply" not in shown(report)


def test_a_policy_folder_of_a_run_plays_in_the_setting_of_that_run(finished: Run) -> None:
    found = find_policy(finished.policy)
    assert found.settings.recipe == "frozenlake"
    assert found.settings.model.tiny == finished.settings.model.tiny
    assert found.model == str(finished.policy)
    assert find_policy(finished.policy, recipe="bandit").settings.env.type == "bandit"


def test_a_models_own_name_goes_into_the_settings_of_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a model: 1").mkdir()
    found = find_policy(tmp_path / "a model: 1", recipe="bandit")
    assert found.settings.model.path == str(tmp_path / "a model: 1")
    assert find_policy("owner/name").settings.model.path == "owner/name"
    assert find_policy("tiny", recipe="bandit").settings.env.type == "bandit"
    with pytest.raises(ConfigError, match="brings its own model"):
        find_policy("owner/name", ["model.path=tiny"])


def test_sampled_plays_have_pass_at_k_and_average_at_k(finished: Run) -> None:
    report = evaluate(finished.path, "eval.samples=4", "eval.temperature=1.5")
    assert (report.figures.tasks, report.episodes, report.samples) == (4, 16, 4)
    assert list(report.figures.pass_at) == [1, 2, 4]
    assert report.figures.pass_at[1] == pytest.approx(report.success)
    assert report.figures.pass_at[4] >= report.figures.pass_at[2] >= report.figures.pass_at[1]
    assert {len(task.plays) for task in report.tasks} == {4}
    row = report.to_dict()
    assert row["average_at"] == {"4": report.success}
    assert "pass@4" in shown(report)
    assert "sampled at temperature 1.5" in shown(report)
    assert evaluate(finished.path).temperature == 0


def test_siblings_are_drawn_each_for_itself(finished: Run) -> None:
    words = ["eval.episodes=1", "eval.samples=6", "eval.temperature=1.5"]
    played = evaluate_policy(str(finished.path), words, QUIET, recipe=None, split="eval").trajectories
    assert len({tuple(turn.response_text for turn in t.turns) for t in played}) > 1


def test_more_samples_need_a_temperature(finished: Run) -> None:
    with pytest.raises(ConfigError, match=r"samples: 4 given with temperature 0.*Set eval\.temperature"):
        evaluate(finished.path, "eval.samples=4")


def test_tokens_are_counted(finished: Run) -> None:
    result = evaluate_policy(str(finished.path), ["eval.episodes=4"], QUIET, recipe=None, split="eval")
    cost, segments = result.report.cost, [s for t in result.trajectories for s in t.segments]
    assert cost is not None
    assert cost.sampled == sum(segment.num_action_tokens for segment in segments)
    assert cost.sampled + cost.read == sum(map(len, segments))
    assert cost.sampled_per_episode == cost.sampled / 4


def test_difficulties_are_told_where_the_environment_says_one() -> None:
    settings = load_settings("alfworld", {"eval.episodes": 12})
    report = evaluate_rule("oracle", settings, "eval").report
    assert sum(figures.tasks for figures in report.by_difficulty.values()) == 12
    assert {"pick_and_place_simple"} <= set(report.by_difficulty)
    assert "difficulty" in shown(report)
    lake = evaluate_rule("oracle", load_settings("frozenlake", {"eval.episodes": 3}), "eval").report
    assert lake.by_difficulty == {}


def test_episodes_and_results_are_always_saved(finished: Run, tmp_path: Path) -> None:
    result = evaluate_policy(str(finished.path), ["eval.episodes=4"], QUIET, recipe=None, split="eval")
    saved = result.save(tmp_path / "here")
    back = read_eval(tmp_path / "here")
    assert (back.tasks, back.seed, back.recipe) == (result.report.tasks, 0, "frozenlake")
    assert back.trajectories is not None
    assert [str(t.id) for t in read_trajectories(back.trajectories)] == [str(t.id) for t in result.trajectories]
    assert "frozen_lake" in (tmp_path / "here" / "eval.md").read_text()
    assert saved.to_dict()["folder"] == str(tmp_path / "here")
    settings = load_settings("frozenlake", {"eval.episodes": 3, "run.root": str(tmp_path)})
    rule = evaluate_rule("oracle", settings, "eval").save(None)
    assert rule.folder is not None
    assert rule.folder.parent == tmp_path / "evals"
    assert read_eval(rule.folder).tasks == rule.tasks


def test_a_checkpoint_stands_for_its_policy(finished: Run) -> None:
    checkpoint = finished.policy.parent
    assert find_policy(checkpoint).model == str(finished.policy)
    assert find_policy(checkpoint).settings.recipe == "frozenlake"


def test_text_of_a_model_stays_inside_its_fence(finished: Run) -> None:
    report = evaluate(finished.path)
    sample = replace(report.replies[0], reply="```\n# heading\n````\n<script>")
    page = to_markdown(make_page([replace(report, replies=(sample,), target="a | b")]))
    assert "`````text\n```\n# heading\n````\n<script>\n`````" in page
    assert "a \\| b" in page


def test_the_command_plays_rules_suites_and_writes_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "myopic", "--episodes", "3", "--samples", "2", "--markdown", "page.md", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["episodes"], row["num_tasks"], row["average_at"].keys()) == (6, 3, {"2"})
    assert Path(row["folder"]).parent == Path("runs/evals")
    assert Path("page.md").read_text().startswith("# Evaluation")
    assert main(["eval", "random", "--suite", "mission", "--episodes", "1", "--out", "all"]) == 0
    assert {path.name for path in Path("all").iterdir()} >= {"frozenlake", "webshop", "alfworld"}
    assert "sokoban" in capsys.readouterr().out


def test_a_rule_that_only_a_later_recipe_of_a_suite_knows_is_played_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SUITES, "two", ("bandit", "frozenlake"))
    assert main(["eval", "myopic", "--suite", "two", "--episodes", "2", "--out", "all"]) == 0
    assert [path.name for path in Path("all").iterdir()] == ["frozenlake"]
    assert "bandit: its environment cannot be played by 'myopic' and is left out" in capsys.readouterr().out
    assert main(["eval", "myopia", "--suite", "two"]) == 2
    assert "'myopia' is neither a run directory nor a model" in capsys.readouterr().err


def test_what_a_model_or_a_rule_has_played_is_saved_under_the_root_of_runs(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(finished.policy, tmp_path / "model")
    for target in (str(model), "oracle"):
        assert main(["eval", target, "--episodes", "2", f"run.root={tmp_path / 'elsewhere'}"]) == 0
    assert len(list((tmp_path / "elsewhere" / "evals").iterdir())) == 2
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["eval"], "TARGET is required"),
        (["eval", "oracle", "--suite", "missoin"], "Did you mean 'mission'"),
        (["eval", "oracle", "--suite", "mission", "--env", "bandit"], "expected one of them"),
        (["eval", "oracle", "--samples", "0"], "--samples must be at least 1, got 0"),
    ],
)
def test_words_that_do_not_fit_are_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("words", "played"), [(["--temperature", "0"], 0), (["temperature=1.5"], 1.5)])
def test_the_temperature_of_an_evaluation_is_its_own(
    finished: Run, words: list[str], played: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was taken for another system's key of rollout.temperature, which 0 is no value of."""
    assert main(["eval", str(finished.path), "--episodes", "2", "--json", *words]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["temperature"] == played


def test_a_temperature_that_is_none_is_refused_by_the_name_of_the_setting(
    finished: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(finished.path), "--temperature", "-1"]) == 2
    assert "eval.temperature: -1 given" in capsys.readouterr().err


def test_an_evaluation_of_no_episodes_is_refused(finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for target in (str(finished.path), "random"):
        assert main(["eval", target, "eval.episodes=0"]) == 2
        assert "eval.episodes must be at least 1 to evaluate, got 0. Give --episodes N." in capsys.readouterr().err


def test_an_evaluation_changes_nothing_in_a_training_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    often = ["eval.every=1", "eval.samples=2", "eval.temperature=1"]
    plain, watched = (
        train("frozenlake", [*SMALL_LAKE, *words], run_dir=tmp_path / str(number))
        for number, words in enumerate((["eval.episodes=0"], often))
    )
    pairs = list(zip(plain.metrics(), [row for row in watched.metrics() if row["step"] > 0], strict=True))
    assert len(pairs) == 2
    for one, two in pairs:
        names = [name for name in one if name.startswith(("learn/", "rollout/")) and not name.endswith("_per_s")]
        assert [one[name] for name in names] == [two[name] for name in names]
    assert watched.summary.eval_episodes == 10


def test_a_run_that_is_not_there_is_no_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "lake-1").mkdir(parents=True)
    (tmp_path / "runs" / "lake-1" / "config.yaml").write_text("env: {type: frozen_lake}")
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "runs/lake-2"]) == 2
    assert "there is no run 'runs/lake-2'. Did you mean 'lake-1'?" in capsys.readouterr().err

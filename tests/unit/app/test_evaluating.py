"""`turnwise eval`: what was sampled, how sure the share is, and why nothing succeeded."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from turnwise.app.evaluating import EvalReport, evaluate_policy, evaluate_rule, show_report
from turnwise.app.policies import find_policy
from turnwise.app.run import Run
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError

QUIET = Console(quiet=True)


def evaluate(target: object, *words: str, recipe: str | None = None) -> EvalReport:
    return evaluate_policy(str(target), ["eval.episodes=4", *words], QUIET, recipe=recipe, split="eval")


def shown(report: EvalReport) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    show_report(console, report)
    return console.export_text()


def test_replies_are_shown_with_whether_they_were_understood(finished: Run) -> None:
    report = evaluate(finished.path)
    assert 1 <= len(report.replies) <= 3
    for sample in report.replies:
        assert sample.tokens >= 1
        assert sample.observation
        assert sample.understood == bool(sample.actions)
    assert report.stop_reasons is not None
    assert sum(report.stop_reasons.values()) == 4
    text = shown(report)
    assert "reply 1:" in text
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
    assert set(cut.stop_reasons or {}) <= {"max_turns", "terminated", "max_actions"}


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
    report = evaluate_rule("oracle", load_settings("frozenlake", {"eval.episodes": 3}), "eval")
    row = report.to_dict()
    assert row["success_interval"] == pytest.approx([0.4385, 1.0], abs=1e-3)
    assert (row["invalid"], row["replies"]) == (None, ())
    assert "reply" not in shown(report)


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

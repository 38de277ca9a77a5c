"""Yardsticks: the same tasks, played by rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turnwise.config.load import load_settings
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.loop.build import first_train_seed
from turnwise.loop.evaluate import Evaluation, evaluate_scripted_policy, has_scripted_policy, measure_baselines
from turnwise.report.statistics import wilson_interval
from turnwise.types import Task

TASKS = [Task(tag="frozen_lake", seed=seed, split="eval") for seed in range(30)]


def measure(settings: TurnwiseSettings, rule: str, tasks: list[Task]) -> tuple[float, float]:
    result = evaluate_scripted_policy(settings, rule, tasks)
    return result.success, result.mean_return


def always_right(env: object, observation: str) -> str:
    return "Right"


def test_a_users_function_is_a_rule() -> None:
    settings = load_settings("frozenlake")
    played = evaluate_scripted_policy(settings, "tests.unit.loop.test_evaluate:always_right", TASKS[:3])
    assert {turn.response_text for t in played.trajectories for turn in t.turns} == {"Right"}
    with pytest.raises(ConfigError, match="takes \\(env, observation\\) and returns an action"):
        evaluate_scripted_policy(settings, "math:sqrt", TASKS[:3])
    assert has_scripted_policy(settings, "myopic", "eval")
    assert not has_scripted_policy(settings, "nobody", "eval")


def test_plays_of_one_task_are_no_news_of_other_tasks() -> None:
    once = evaluate_scripted_policy(load_settings("frozenlake"), "random", TASKS)
    many = evaluate_scripted_policy(
        load_settings("frozenlake", ["eval.samples=20", "eval.temperature=1"]), "random", TASKS
    )
    assert len(many.trajectories) == 20 * len(once.trajectories)
    (low, high), share = many.success_interval, many.success
    assert low < share < high
    # As if 600 tasks had been played, it would be this narrow.
    narrow = wilson_interval(share, 600)
    assert high - low > 1.5 * (narrow[1] - narrow[0])


def test_a_success_lies_in_its_interval_where_some_plays_say_nothing() -> None:
    played = evaluate_scripted_policy(
        load_settings("frozenlake", ["eval.samples=4", "eval.temperature=1"]), "oracle", TASKS[:20]
    ).trajectories
    says = {task: [True, None, None, None] if n < 10 else [False] * 4 for n, task in enumerate(TASKS[:20])}
    said = [replace(play, is_success=says[play.task].pop(0)) for play in played]
    result = Evaluation.of(load_settings("frozenlake"), said)
    assert result.success == 0.5 == result.by_tag()["frozen_lake"].success
    low, high = result.success_interval or (1.0, 0.0)
    assert low < result.success < high


def test_rules_in_the_setting_of_a_recipe() -> None:
    settings = load_settings("frozenlake")
    assert measure(settings, "oracle", TASKS) == (1.0, 1.0)
    random = measure(settings, "random", TASKS)
    assert random == measure(settings, "random", TASKS)
    assert random[0] < 0.6
    assert measure(load_settings("frozenlake", ["rollout.max_turns=1"]), "oracle", TASKS)[0] < 1


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'frozen_lake' cannot be played by 'orakel'. Did you mean 'oracle'\?"):
        measure(load_settings("frozenlake"), "orakel", TASKS)


def test_baselines_have_the_budget_of_the_run() -> None:
    found = [
        measure_baselines(load_settings("frozenlake", overrides), TASKS)
        for overrides in ([], ["rollout.max_turns=2"], ["rollout.max_actions=2"], ["rollout.max_turns=1"])
    ]
    assert {"random", "oracle"} <= found[0].keys()
    assert found[0]["oracle"] == 1.0
    assert found[0]["random"] < 0.5
    assert found[3]["oracle"] <= found[1]["oracle"] == found[2]["oracle"] < 1.0
    more = load_settings("frozenlake", ["rollout.max_turns=2", "context.answer.max_actions_per_turn=5"])
    assert measure_baselines(more, TASKS)["oracle"] == 1.0


def test_runs_of_different_seeds_share_no_task() -> None:
    first, second = (first_train_seed(load_settings("frozenlake", [f"run.seed={seed}"])) for seed in (0, 1))
    assert second - first >= 10_000_000
    assert first_train_seed(load_settings("frozenlake", ["rollout.first_seed=5"])) == 5

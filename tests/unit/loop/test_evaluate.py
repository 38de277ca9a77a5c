"""Yardsticks: the same tasks, played by rules."""

from __future__ import annotations

import pytest

from turnwise.config.load import load_settings
from turnwise.errors import ConfigError
from turnwise.loop.build import first_train_seed
from turnwise.loop.evaluate import measure_baselines, measure_rule_in
from turnwise.types import Task

TASKS = [Task(tag="frozen_lake", seed=seed, split="eval") for seed in range(30)]


def test_rules_in_the_setting_of_a_recipe() -> None:
    settings = load_settings("frozenlake")
    assert measure_rule_in(settings, "oracle", TASKS) == (1.0, 1.0)
    random = measure_rule_in(settings, "random", TASKS)
    assert random == measure_rule_in(settings, "random", TASKS)
    assert random[0] < 0.6
    assert measure_rule_in(load_settings("frozenlake", ["rollout.max_turns=1"]), "oracle", TASKS)[0] < 1


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'frozen_lake' cannot be played by 'orakel'. Did you mean 'oracle'\?"):
        measure_rule_in(load_settings("frozenlake"), "orakel", TASKS)


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

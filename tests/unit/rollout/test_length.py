"""`tasks.epochs`: how many updates go through a finite set of tasks, for all who ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from turnwise.checks.settings import find_unused_settings
from turnwise.checks.setup import find_errors
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.envs.base import make_env
from turnwise.errors import ConfigError
from turnwise.report.trajectories import read_trajectories
from turnwise.rollout.env_specs import resolve_total_steps
from turnwise.run.api import train

from ...small_run import SMALL, without_plots

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}}
NUM_ROWS = 10


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Ten prompts for training and three for evaluation, judged by a function."""
    without_plots(monkeypatch)
    (tmp_path / "scores_of_length.py").write_text("def score(prompt, response):\n    return len(response) / 100\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {"path": tmp_path / "train.txt", "eval_path": tmp_path / "eval.txt"}
    files["path"].write_text("\n".join(f"What is {n} and {n}?" for n in range(NUM_ROWS)))
    files["eval_path"].write_text("\n".join(f"What is {n} less 1?" for n in range(3)))
    return {
        "env": {"type": "prompts", **{name: str(file) for name, file in files.items()}},
        "context": {"answer": {"type": "plain"}, "instructions": "none"},
        "reward": {"judge": {"type": "function", "target": "scores_of_length:score"}},
        "rollout": {"groups": 4},
    }


def settled(recipe: dict[str, Any], *overrides: str) -> tuple[int | None, int]:
    settings = resolve_total_steps(load_settings(recipe, overrides))
    return settings.tasks.num_tasks, settings.learn.steps


@pytest.mark.slow
def test_epochs_are_trained_to_their_end_and_every_row_is_seen(recipe: dict[str, Any], tmp_path: Path) -> None:
    small = [override for override in SMALL if not override.startswith("learn.steps")]
    given = [*small, "rollout.groups=4", "tasks.epochs=2", "report.trajectories_per_step=100", "eval.episodes=all"]
    run = train(recipe, given, run_dir=tmp_path / "run")
    assert run.summary.policy_version == run.settings.learn.steps == 5
    assert run.settings.tasks.num_tasks == NUM_ROWS
    assert run.summary.eval_episodes == 3
    files = [run.path / "trajectories" / f"step-{step:06d}.jsonl" for step in range(1, 6)]
    seeds = {trajectory.task.seed for file in files for trajectory in read_trajectories(file)}
    assert len(seeds) == NUM_ROWS


def test_the_number_of_updates_follows_from_tasks_epochs_and_groups(recipe: dict[str, Any]) -> None:
    assert settled(recipe) == (None, 100)
    assert settled(recipe, "tasks.epochs=1") == (10, 3)
    assert settled({**recipe, "learn": {"steps": 70}}, "tasks.epochs=2") == (10, 5)
    assert settled(recipe, "tasks.epochs=2", "tasks.num_tasks=6") == (6, 3)
    assert settled(LAKE, "tasks.epochs=3", "tasks.num_tasks=16", "rollout.groups=8") == (16, 6)


def test_of_two_lengths_the_later_one_counts_and_two_at_once_are_refused(recipe: dict[str, Any]) -> None:
    once = resolve_total_steps(load_settings(recipe, ["tasks.epochs=2"])).model_dump()
    assert settled(once, "learn.steps=7")[1] == 7
    assert settled(once, "rollout.groups=5")[1] == 4
    assert settled(once, "tasks.epochs=4")[1] == 10
    with pytest.raises(ConfigError, match=r"learn\.steps and tasks\.epochs given; both say how long"):
        load_settings(recipe, ["learn.steps=7", "tasks.epochs=2"])


def test_settled_settings_stay_as_they_are(recipe: dict[str, Any]) -> None:
    once = resolve_total_steps(load_settings(recipe, ["tasks.epochs=2", "tasks.selector=random"]))
    assert resolve_total_steps(load_settings(once.model_dump())) == once
    assert find_unused_settings(once) == []


def test_an_endless_world_has_no_epochs() -> None:
    (refusal,) = find_errors(load_settings(LAKE, ["tasks.epochs=2"]))
    assert refusal.message.startswith("tasks.epochs: 2 given; env.type 'frozen_lake' has no end")
    assert "Set tasks.num_tasks" in refusal.message
    assert "learn.steps" in refusal.message
    with pytest.raises(ConfigError, match=r"tasks\.epochs: 2 given"):
        tw.PPOTrainer(LAKE, ["tasks.epochs=2"])


def test_a_missing_file_is_told_once_and_fewer_rows_than_groups_are_refused(recipe: dict[str, Any]) -> None:
    (refusal,) = find_errors(load_settings(recipe, ["tasks.epochs=2", "env.path=none.txt"]))
    assert "none.txt" in refusal.message
    (refusal,) = find_errors(load_settings(recipe, ["tasks.epochs=2", "rollout.groups=11"]))
    assert "rollout.groups = 11" in refusal.message


def test_trainer_plan_and_check_show_the_same_number(recipe: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    assert tw.PPOTrainer(recipe, ["tasks.epochs=2"]).settings.learn.steps == 5
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps({**recipe, "tasks": {"epochs": 2}}))
    assert main(["plan", str(file), "--json", "--trust"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 5
    assert main(["check", str(file), "--json", "--trust"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["learn"]["steps"] == 5


@pytest.mark.parametrize(
    ("name", "row"),
    [("countdown", '{{"nums": [1, {n}], "target": 3}}'), ("metamathqa", '{{"query": "Q{n}?", "response": "{n}"}}')],
)
def test_worlds_of_rows_know_how_many_tasks_they_have(tmp_path: Path, name: str, row: str) -> None:
    assert make_env(name).num_tasks() is None
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(row.format(n=n) for n in range(40)))
    env = make_env(name, path=str(file), eval_share=0.3)
    counts = {split: env.num_tasks(split) for split in ("train", "eval")}
    assert sum(count or 0 for count in counts.values()) == 40
    for split, count in counts.items():
        assert len({env.reset(seed, split=split) for seed in range(7, 7 + (count or 0))}) == count


def test_epochs_of_agents_go_through_the_rows_of_a_file(recipe: dict[str, Any]) -> None:
    config = {"agent": {"agent_length": 4}, "trainer": {"total_epochs": 2}}
    rows = load_settings({**config, "env_template": [recipe["env"]]}, {})
    endless = load_settings({**config, "env_template": ["FrozenLake"]}, {})
    assert (resolve_total_steps(rows).learn.steps, resolve_total_steps(endless).learn.steps) == (5, 2)

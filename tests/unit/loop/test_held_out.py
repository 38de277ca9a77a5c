"""`eval.episodes: all` is every held-out task once, wherever there is an end of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.checks.plan import make_plan
from turnwise.checks.setup import find_errors
from turnwise.config.load import dump_settings, load_settings
from turnwise.errors import ConfigError
from turnwise.loop.build import held_out_tasks
from turnwise.rollout.env_specs import all_envs

JUDGED: dict[str, Any] = {
    "context": {"answer": {"type": "plain"}},
    "reward": {"judge": {"type": "function", "target": "operator:eq"}},
}
ROWS = '{{"query": "What is {n} plus 0?", "response": "The answer is {n}", "prompt": "Say {n}."}}'


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Five rows for training and seven others for evaluation."""
    rows = {"path": range(5), "eval_path": range(20, 27)}
    for name, numbers in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(ROWS.format(n=n) for n in numbers))
    return {name: str(tmp_path / f"{name}.jsonl") for name in rows}


def texts_played(recipe: dict[str, Any], *overrides: str) -> list[str]:
    """What the tasks of an evaluation begin with."""
    settings = load_settings(recipe, overrides)
    envs = {world.tag: world.make("eval") for world in all_envs(settings)}
    return [envs[task.tag].reset(task.seed, split=task.split) for task in held_out_tasks(settings)]


@pytest.mark.parametrize("name", ["prompts", "metamathqa"])
def test_every_row_of_a_file_for_evaluation_is_played_once(files: dict[str, str], name: str) -> None:
    recipe = {**JUDGED, "env": {"type": name, **files}}
    assert load_settings(recipe).eval.episodes == "all"
    played = texts_played(recipe, "eval.first_seed=4")
    assert len(played) == len(set(played)) == 7
    assert len(texts_played(recipe, "eval.episodes=9")) == 9
    assert make_plan(load_settings(recipe)).eval_episodes == 7


def test_the_share_of_a_file_that_is_held_out_is_played_once(files: dict[str, str]) -> None:
    recipe = {**JUDGED, "env": {"type": "prompts", "path": files["eval_path"], "eval_share": 0.5}}
    assert load_settings(recipe).eval.episodes == 400
    played = texts_played(recipe, "eval.episodes=all")
    assert 1 <= len(played) == len(set(played)) < 7


def test_environments_of_a_mix_have_each_as_many_as_they_have(files: dict[str, str]) -> None:
    recipe = {**JUDGED, "env": {"type": "prompts", **files}, "mix": {"m": {"env": {"type": "metamathqa", **files}}}}
    assert len(texts_played(recipe)) == 14
    recipe["mix"] = {"lake": {"env": {"type": "frozen_lake"}}}
    assert load_settings(recipe).eval.episodes == 400


def test_an_endless_world_says_that_it_is_one() -> None:
    lake = {"env": {"type": "frozen_lake"}}
    (refusal,) = find_errors(load_settings(lake, ["eval.episodes=all"]))
    assert refusal.message.startswith("eval.episodes: 'all' given; environment 'frozen_lake' has no end of tasks")
    with pytest.raises(ConfigError, match=r"Set eval\.episodes to a number"):
        held_out_tasks(load_settings(lake, ["eval.episodes=all"]))


def test_all_stays_all_in_resolved_settings(files: dict[str, str], tmp_path: Path) -> None:
    settings = load_settings({**JUDGED, "env": {"type": "prompts", **files}})
    file = tmp_path / "resolved.yaml"
    file.write_text(dump_settings(settings))
    assert load_settings(file) == settings


@pytest.mark.parametrize("given", ["-1", "some", "true", "2.5"])
def test_anything_else_is_refused_with_all_choices(given: str) -> None:
    with pytest.raises(ConfigError, match=r"eval\.episodes: .* given; expected 'all' or a number of episodes from 0"):
        load_settings({"env": {"type": "frozen_lake"}}, [f"eval.episodes={given}"])

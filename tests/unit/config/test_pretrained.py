"""`pretrained:` counts where the model is not tiny, gives way to what is set over it, and is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import dump_settings, load_recipe, load_settings
from turnwise.config.recipes import list_recipes
from turnwise.context.answer import render_answer
from turnwise.envs.safe_calls import reset_env
from turnwise.errors import ConfigError
from turnwise.rollout.env_specs import main_env

ELSEWHERE = "model.path=/some/folder"
RECIPE: dict[str, Any] = {
    "env": {"type": "bandit"},
    "credit": {"type": "dr_grpo"},
    "learn": {"optim": {"lr": 1.0e-3}},
    "warm_start": {"type": "oracle", "episodes": 7},
    "pretrained": {
        "model": {"lora": {"type": "lora", "rank": 4}},
        "learn": {"optim": {"lr": 1.0e-4}},
        "warm_start": {"type": "none"},
    },
}


def write(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{name}.yaml")


def test_it_applies_where_the_model_is_not_tiny() -> None:
    tiny, other = load_settings(RECIPE), load_settings(RECIPE, [ELSEWHERE])
    assert (tiny.learn.optim.lr, tiny.warm_start.type, tiny.model.lora.type) == (1e-3, "oracle", "none")
    assert (other.learn.optim.lr, other.warm_start.type, other.model.lora.type) == (1e-4, "none", "lora")


def test_the_model_may_be_chosen_after_it(tmp_path: Path) -> None:
    write(tmp_path, "base", "env: {type: bandit}\npretrained: {learn: {steps: 3}}\n")
    top = write(tmp_path, "top", "extends: base.yaml\nmodel: {path: /some/folder}\n")
    assert load_settings(top).learn.steps == 3
    assert load_settings(top, ["model.path=tiny"]).learn.steps == 100


def test_what_is_set_over_it_wins(tmp_path: Path) -> None:
    chosen = ["learn.optim.lr=5e-5", "model.lora.type=none", "warm_start.type=oracle"]
    settings = load_settings(RECIPE, [*chosen, ELSEWHERE])
    assert (settings.learn.optim.lr, settings.model.lora.type, settings.warm_start.type) == (5e-5, "none", "oracle")
    write(tmp_path, "base", "env: {type: bandit}\nlearn: {steps: 1}\npretrained: {learn: {steps: 2, epochs: 2}}\n")
    top = write(tmp_path, "top", "extends: base.yaml\nlearn: {steps: 3}\npretrained: {eval: {every: 5}}\n")
    learn = load_settings(top, [ELSEWHERE]).learn
    assert (learn.steps, learn.epochs) == (3, 2)
    assert load_settings(top, [ELSEWHERE]).eval.every == 5


def test_a_key_beside_a_choice_of_the_section_may_be_overridden() -> None:
    loaded = load_recipe(RECIPE, [ELSEWHERE, "model.lora.rank=2"])
    assert loaded.settings.model.lora.model_dump()["rank"] == 2
    assert "learn.optim.lr" in {change.path for change in loaded.pretrained}


def test_another_choice_takes_the_keys_of_the_one_before_with_it() -> None:
    recipe = {**RECIPE, "pretrained": {"credit": {"type": "gigpo"}, "warm_start": {"type": "none"}}}
    recipe["credit"] = {"type": "step_return", "gamma": 0.5}
    credit = load_settings(recipe, [ELSEWHERE]).credit.model_dump()
    assert (credit["type"], credit["gamma"]) == (
        "gigpo",
        load_settings({**recipe, "credit": {"type": "gigpo"}}).credit.model_dump()["gamma"],
    )


def test_what_it_changed_is_told_and_loads_to_the_same_settings(tmp_path: Path) -> None:
    loaded = load_recipe(RECIPE, [ELSEWHERE])
    told = {change.path: (change.before, change.after) for change in loaded.pretrained}
    assert told["learn.optim.lr"] == (1e-3, 1e-4)
    assert told["model.lora.rank"] == (None, 4)
    assert told["warm_start.type"] == ("oracle", "none")
    assert "credit.type" not in told
    text = dump_settings(loaded.settings, loaded.pretrained)
    first, second = text.splitlines()[:2]
    assert first.startswith("# from the section 'pretrained'")
    assert "learn.optim.lr" in first
    assert not second.startswith("#")
    again = load_recipe(write(tmp_path, "config", text))
    assert again.settings == loaded.settings
    assert again.pretrained == ()


def test_nothing_is_told_of_the_tiny_model() -> None:
    loaded = load_recipe(RECIPE)
    assert loaded.pretrained == ()
    assert not dump_settings(loaded.settings, loaded.pretrained).startswith("#")


@pytest.mark.parametrize("model", ["model.path=tiny", ELSEWHERE])
@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"context": {"foo": 1}}, "pretrained.context.foo: unknown setting"),
        ({"learn": {"optim": {"lr": -1}}}, "pretrained.learn.optim.lr: -1 given"),
        ({"model": {"lora": {"type": "lorra"}}}, "pretrained.model.lora.type: 'lorra' given"),
        ({"credit": {"type": "nonsense"}}, "pretrained.credit.type: "),
        ({"extends": "bandit"}, "pretrained.extends: unknown setting"),
        ({"model": {"path": "tiny"}}, "pretrained.model.path: 'tiny' given"),
        (3, "pretrained: 3 given"),
    ],
)
def test_a_broken_section_does_not_wait_for_its_day(model: str, section: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings({**RECIPE, "pretrained": section}, [model])


def test_a_mistake_in_an_override_is_not_laid_at_its_door() -> None:
    with pytest.raises(ConfigError) as failure:
        load_settings(RECIPE, [ELSEWHERE, "learn.optim.lr=-1"])
    assert "pretrained" not in str(failure.value)


@pytest.mark.parametrize("name", [name for name in list_recipes() if load_settings(name).model.path == "tiny"])
def test_every_shipped_recipe_fits_a_pretrained_model(name: str) -> None:
    loaded = load_recipe(name, [ELSEWHERE])
    settings, context = loaded.settings, loaded.settings.context
    assert "model.lora.type" in {change.path for change in loaded.pretrained}
    assert settings.model.lora.type == "lora"
    assert settings.learn.optim.lr <= 3e-4
    assert getattr(settings.learn.critic, "lr", 0.0) <= 3e-4
    assert settings.warm_start.type == "none"
    assert settings.report.checkpoint_minutes > 0
    assert 16 <= settings.rollout.groups * settings.rollout.group_size <= 64
    assert settings.eval.episodes <= 100
    assert settings.model.tiny == load_settings({"env": {"type": "bandit"}}).model.tiny
    # A single request says everything; the others explain what may be said and how.
    assert context.instructions == ("none" if settings.env.type == "prompts" else "full")
    assert not context.answer.is_strict
    assert context.tell_invalid == (settings.rollout.max_turns > 1)
    if settings.rollout.workflow == "agent":
        assert context.answer.forced_prefix == ""
    env = main_env(settings).make("train")
    reset_env(env, seed=0, split="train")
    # With two characters to a token and room for some words more.
    assert context.max_response_tokens >= len(render_answer([env.oracle()], context.answer)) // 2 + 8
    assert context.max_tokens >= 16 * context.max_response_tokens or settings.rollout.max_turns <= 3


def test_a_lesson_that_is_asked_for_is_not_switched_off() -> None:
    words = ["model.path=/some/folder"]
    assert load_settings("frozenlake", words).warm_start.type == "none"
    asked = load_settings("frozenlake", [*words, "warm_start.episodes=7"]).warm_start
    assert (asked.type, asked.episodes) == ("oracle", 7)  # type: ignore[union-attr]

"""`multi_turn`, `use_reward_model` and `use_reward_critic` stand for choices and follow each other as known."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.checks.settings import check_settings
from turnwise.config.load import load_settings
from turnwise.errors import ConfigError

PROMPTS = {"env": {"type": "prompts"}, "context": {"answer": {"type": "plain"}}, "credit": {"type": "reinforce"}}


def types_of(*overrides: str, **more: object) -> tuple[str, str, int]:
    settings = load_settings({**PROMPTS, **more}, overrides)
    return settings.reward.judge.type, settings.learn.critic.type, settings.rollout.max_turns


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ("none", "none", 5)),
        (("multi_turn=true",), ("none", "none", 5)),
        (("multi_turn=false",), ("model", "model", 1)),
        (("multi_turn=False", "use_reward_critic=false"), ("model", "none", 1)),
        (("multi_turn=true", "use_reward_model=true"), ("model", "none", 5)),
        (("use_reward_model=true",), ("model", "none", 5)),
        (("use_reward_critic=true",), ("none", "model", 5)),
    ],
)
def test_the_switches_become_choices(overrides: tuple[str, ...], expected: tuple[str, str, int]) -> None:
    assert types_of(*overrides) == expected


def test_what_a_file_chooses_itself_stays_unless_it_is_switched_by_name() -> None:
    own = {"learn": {"critic": {"type": "value_head"}}, "reward": {"judge": {"type": "function", "target": "a:b"}}}
    assert types_of("multi_turn=true", **own)[:2] == ("function", "value_head")
    assert types_of("multi_turn=false", **own)[:2] == ("function", "value_head")
    assert types_of("use_reward_model=true", "use_reward_critic=true", **own)[:2] == ("function", "value_head")
    assert types_of("use_reward_model=false", "use_reward_critic=false", **own)[:2] == ("none", "none")


def test_the_resolved_settings_know_no_switches() -> None:
    assert not {"multi_turn", "use_reward_model"} & load_settings(PROMPTS, ["multi_turn=false"]).model_dump().keys()


def test_a_reward_model_that_is_asked_for_and_absent_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        check_settings(load_settings(PROMPTS, ["multi_turn=false", "env.path=my_prompts.txt"]))
    assert "reward.judge.path=" in str(raised.value)


def test_one_turn_without_an_environment_is_about_the_built_in_prompts() -> None:
    settings: Any = load_settings({"multi_turn": False})
    assert (settings.env.type, settings.context.answer.type, settings.rollout.max_turns) == ("prompts", "plain", 1)
    assert (settings.reward.judge.type, settings.reward.judge.path) == ("model", "tiny")
    assert (settings.learn.critic.type, settings.credit.type) == ("model", "gae")
    check_settings(settings)


def test_one_turn_of_an_environment_with_rewards_needs_no_judge() -> None:
    settings = load_settings({"env": {"type": "frozen_lake"}, "multi_turn": False})
    assert (settings.reward.judge.type, settings.learn.critic.type) == ("none", "model")
    check_settings(settings)
    asked: Any = load_settings({"env": {"type": "frozen_lake"}, "multi_turn": False, "use_reward_model": True})
    assert (asked.reward.judge.type, asked.reward.judge.path) == ("model", None)


def test_many_turns_need_an_environment() -> None:
    with pytest.raises(ConfigError, match=r"multi_turn: true given and no environment; .* env\.type=frozen_lake"):
        load_settings({"multi_turn": True})


@pytest.mark.parametrize("value", ["maybe", "3"])
def test_a_switch_is_true_or_false(value: str) -> None:
    with pytest.raises(ConfigError, match=r"use_reward_model: .* expected true or false"):
        load_settings(PROMPTS, [f"use_reward_model={value}"])

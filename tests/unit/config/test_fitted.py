"""Defaults that follow from other choices fit them, and leave alone what was chosen."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from turnwise.checks.settings import check_settings, find_unused_settings
from turnwise.config.load import dump_settings, load_settings
from turnwise.errors import ConfigError

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}}


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ((), "grpo"),
        (("multi_turn=true", "use_reward_model=false", "use_reward_critic=false"), "grpo"),
        (("rollout.group_size=1",), "reinforce_pp"),
        (("learn.critic.type=value_head",), "gae"),
        (("use_reward_critic=true",), "gae"),
        (("use_reward_critic=true", "rollout.group_size=1"), "gae"),
        (("learn.critic.type=value_head", "use_reward_critic=false"), "grpo"),
    ],
)
def test_the_credit_rule_fits_the_critic_and_the_siblings(overrides: tuple[str, ...], rule: str) -> None:
    settings = load_settings(LAKE, overrides)
    assert settings.credit.type == rule
    check_settings(settings)
    assert find_unused_settings(settings) == []


def test_keys_of_a_rule_that_is_not_named_go_to_the_one_that_is_filled_in() -> None:
    recipe = {**LAKE, "credit": {"gamma": 0.9}}
    assert load_settings(recipe, ["use_reward_critic=true"]).credit.model_dump() == {
        **load_settings(LAKE, ["use_reward_critic=true"]).credit.model_dump(),
        "gamma": 0.9,
    }
    assert load_settings(recipe, ["rollout.group_size=1"]).credit.model_dump()["gamma"] == 0.9
    with pytest.raises(ConfigError, match=r"credit\.gamma: unknown setting"):
        load_settings(recipe)


def test_a_rule_that_is_named_stays_and_is_refused_where_it_has_no_critic() -> None:
    settings = load_settings(LAKE, ["credit.type=gae"])
    assert settings.credit.type == "gae"
    with pytest.raises(ConfigError, match=r"credit\.type 'gae' needs a critic"):
        check_settings(settings)


def test_resolved_settings_name_the_rule_and_load_as_they_are(tmp_path: Any) -> None:
    settings = load_settings(LAKE, ["learn.critic.type=value_head"])
    file = tmp_path / "resolved.yaml"
    file.write_text(dump_settings(settings))
    assert "type: gae" in file.read_text()
    assert load_settings(file, ["recipe=custom"]) == settings


PROMPTS = {"env": {"type": "prompts"}, "context": {"answer": {"type": "plain"}}}


@pytest.mark.parametrize(
    ("env", "mixed", "expected"),
    [
        ("frozen_lake", {}, "add"),
        ("prompts", {}, "leave"),
        ("frozen_lake", {"prompts": "prompts"}, "leave"),
        ("frozen_lake", {"other": "bandit"}, "add"),
    ],
)
def test_a_judge_leaves_alone_what_has_rewards_where_it_is_needed_elsewhere(
    env: str, mixed: dict[str, str], expected: str
) -> None:
    recipe = {
        "env": {"type": env},
        "mix": {tag: {"env": {"type": name}, "context": {"answer": {"type": "plain"}}} for tag, name in mixed.items()},
        "context": {"answer": {"type": "plain"}},
        "reward": {"judge": {"type": "model", "path": "tiny"}},
    }
    settings: Any = load_settings(recipe)
    assert settings.reward.judge.beside_env == expected
    check_settings(settings)
    chosen: Any = load_settings(recipe, ["reward.judge.beside_env=fill"])
    assert chosen.reward.judge.beside_env == "fill"


def test_what_only_a_judge_alone_decides_has_no_effect_beside_an_environment() -> None:
    judge = "reward.judge={type: function, target: 'operator:eq', success_above: 2}"
    notes = find_unused_settings(load_settings(LAKE, [judge]))
    assert notes == ["reward.judge.success_above has no effect in environments that say themselves what a success is."]
    assert find_unused_settings(load_settings(PROMPTS, [judge])) == []


def test_the_built_in_judge_says_that_it_knows_nothing_of_other_environments() -> None:
    (note,) = find_unused_settings(load_settings(LAKE, ["reward.judge={type: model, path: tiny}"]))
    assert note.startswith("reward.judge.path 'tiny' has learnt from the built-in prompts alone")


def test_with_vllm_what_other_kernels_change_is_corrected_and_heads_are_wide_enough() -> None:
    vllm = ["engine.type=vllm", "engine.start=true"]
    plain, fitted = (
        load_settings(LAKE, ["model.tiny.hidden_size=96"]),
        load_settings(LAKE, [*vllm, "model.tiny.hidden_size=96"]),
    )
    assert (plain.learn.correction.type, plain.model.tiny.num_heads) == ("none", 4)
    assert (fitted.learn.correction.type, fitted.model.tiny.num_heads) == ("truncated", 3)
    chosen = load_settings(LAKE, [*vllm, "learn.correction.type=none", "model.tiny.num_heads=2"])
    assert (chosen.learn.correction.type, chosen.model.tiny.num_heads) == ("none", 2)
    other = load_settings(LAKE, [*vllm, "model.path=/some/folder"])
    assert find_unused_settings(other) == []


def test_on_a_cluster_what_waits_is_kept_and_the_way_back_is_short() -> None:
    settings = load_settings(LAKE, ["cluster.type=ray"])
    assert (settings.buffer.type, settings.report.checkpoint_minutes) == ("sqlite", 2.0)
    assert load_settings(dump_settings_as_mapping(settings)) == settings
    chosen = load_settings(LAKE, ["cluster.type=ray", "report.checkpoint_minutes=1"])
    assert chosen.report.checkpoint_minutes == 1.0
    assert load_settings(LAKE).buffer.type == "memory"


def dump_settings_as_mapping(settings: Any) -> dict[str, Any]:
    return yaml.safe_load(dump_settings(settings))


def test_waits_have_an_effect_in_the_serial_loop_only_on_a_cluster() -> None:
    assert any("sync.timeout_s" in note for note in find_unused_settings(load_settings(LAKE, ["sync.timeout_s=5"])))
    on_cluster = find_unused_settings(load_settings(LAKE, ["sync.timeout_s=5", "cluster.type=ray"]))
    assert not any("sync.timeout_s" in note for note in on_cluster)
    words = ["loop.type=pipelined", "sync.method=checkpoint", "cluster.type=ray"]
    assert find_unused_settings(load_settings(LAKE, words)) == ["sync.method has no effect with cluster.type 'ray'."]

"""Contradictions are refused, settings without effect are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.config.checks import check_settings, find_no_effect
from turnwise.config.load import dump_settings, load_settings
from turnwise.errors import ConfigError

VALID = {"env": {"type": "frozen_lake"}, "learn": {"critic": {"type": "value_head"}}}


def test_a_valid_combination_passes_without_notes() -> None:
    settings = load_settings(VALID)
    check_settings(settings)
    assert find_no_effect(settings) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["learn.critic.type=none"], r"credit.type 'bi_level_gae' needs a critic.*learn.critic.type is 'none'"),
        (["credit.type=gae", "learn.critic.type=none"], r"credit.type 'gae' needs a critic"),
        (["credit.type=grpo", "rollout.group_size=1"], r"rollout.group_size: 1 given; credit.type 'grpo' compares"),
        (["context.max_tokens=64", "context.max_response_tokens=64"], r"context.max_response_tokens: 64 given"),
        (["buffer.train_batch_size=3", "rollout.group_size=4"], r"rollout.group_size: 4 given; a group does not fit"),
        (["buffer.capacity=3", "rollout.group_size=4"], r"a group does not fit into buffer.capacity = 3"),
        (["tasks.num_tasks=7", "rollout.groups=8"], r"tasks.num_tasks: 7 given.*at least 8"),
        (
            ["tasks.num_tasks=8", "rollout.groups=4", "reward.filter={type: top_k, max_rounds: 3}"],
            r"at least 12",
        ),
        (["engine.type=nope"], r"engine.type: there is no engine named 'nope'"),
        (["rollout.workflow=nope"], r"rollout.workflow: there is no workflow named 'nope'"),
        (["env.train={sise: 3}"], r"env.train.*sise"),
        (["env.train={size: many}"], r"env.train.*size"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], words: str) -> None:
    settings = load_settings(VALID, overrides)
    with pytest.raises(ConfigError, match=words):
        check_settings(settings)


@pytest.mark.parametrize(
    "overrides",
    [
        ["learn.critic.type=model"],
        ["learn.critic.type=none", "credit.type=grpo", "rollout.group_size=2"],
        ["context.max_tokens=64", "context.max_response_tokens=63"],
        ["buffer.train_batch_size=4", "rollout.group_size=4"],
        ["buffer.train_batch_size=1", "buffer.unit=groups"],
        ["buffer.capacity=4", "rollout.group_size=4"],
        ["tasks.num_tasks=8", "rollout.groups=8"],
        ["rollout.group_size=1"],
        ["env.train={size: 3}"],
    ],
)
def test_the_other_side_of_each_border_passes(overrides: list[str]) -> None:
    settings = load_settings(VALID, overrides)
    before = dump_settings(settings)
    check_settings(settings)
    assert dump_settings(settings) == before


def test_several_contradictions_come_in_one_message() -> None:
    settings = load_settings(VALID, ["learn.critic.type=none", "context.max_tokens=8"])
    with pytest.raises(ConfigError, match=r"(?s)contradict each other:.*credit.type.*context.max_response_tokens"):
        check_settings(settings)


@pytest.mark.parametrize(
    ("key", "with_note", "without"),
    [
        ("learn.critic.type", ["credit.type=grpo"], ["credit.type=gae"]),
        ("context.window_turns", ["context.window_turns=2"], ["context.window_turns=2", "context.window=sliding"]),
        (
            "learn.optim.final_lr_share",
            ["learn.optim.final_lr_share=0.5"],
            ["learn.optim.final_lr_share=0.5", "learn.optim.schedule=linear"],
        ),
        (
            "watch.min_spread_share",
            ["watch.min_spread_share=0.2", "rollout.group_size=1"],
            ["watch.min_spread_share=0.2"],
        ),
        (
            "watch.max_reference_kl",
            ["watch.max_reference_kl=1.0"],
            ["watch.max_reference_kl=1.0", "learn.kl.type=loss"],
        ),
        ("tasks.selector", ["tasks.selector=random"], ["tasks.selector=random", "tasks.num_tasks=99"]),
        (
            "tasks.target_success",
            ["tasks.target_success=0.4"],
            ["tasks={target_success: 0.4, selector: difficulty, num_tasks: 99}"],
        ),
        ("buffer.unit", ["buffer.unit=tokens"], ["buffer.unit=tokens", "buffer.train_batch_size=99"]),
        (
            "buffer.priority.decay",
            ["buffer.priority={type: linear_decay, decay: 1.0}"],
            ["buffer.priority={type: linear_decay, decay: 1.0}", "buffer.reuse_cooldown=1"],
        ),
        ("model.tiny", ["model.tiny.num_layers=1", "model.path=/some/folder"], ["model.tiny.num_layers=1"]),
    ],
)
def test_a_setting_without_effect_is_named(key: str, with_note: list[str], without: list[str]) -> None:
    (note,) = find_no_effect(load_settings(VALID, with_note))
    assert key in note
    assert find_no_effect(load_settings(VALID, without)) == []


@pytest.mark.parametrize("overrides", [[], ["model.path=/some/folder"], ["context.window=single_turn"]])
def test_the_resolved_file_of_a_run_has_no_notes_that_its_recipe_had_not(overrides: list[str], tmp_path: Path) -> None:
    """The resolved file spells out every default; a default that was written down was not chosen."""
    settings = load_settings(VALID, overrides)
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert find_no_effect(load_settings(str(tmp_path / "config.yaml"))) == find_no_effect(settings) == []

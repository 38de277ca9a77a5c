"""What a plan says must follow from the settings."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.config.load import load_settings
from turnwise.loop.plan import count_parameters, describe_plan, make_plan

RECIPE: dict[str, Any] = {
    "env": {"type": "frozen_lake"},
    "rollout": {"groups": 4, "group_size": 3, "max_turns": 5},
    "context": {"max_response_tokens": 7},
    "learn": {"steps": 10, "epochs": 2, "minibatches": 3, "critic": {"type": "value_head"}},
}


def test_derived_sizes() -> None:
    plan = make_plan(load_settings(RECIPE))
    assert (plan.episodes_per_step, plan.episodes, plan.optimizer_steps) == (12, 120, 60)
    assert plan.max_sampled_tokens_per_step == 12 * 5 * 7
    assert (plan.demonstrations, plan.eval_episodes, plan.num_models) == (0, 400, 2)
    assert plan.memory_bytes == 4 * (2 + 3) * (plan.parameters or 0)
    assert plan.notes == ()
    assert plan.to_dict()["episodes"] == 120


@pytest.mark.parametrize(
    ("overrides", "num_models", "copies"),
    [
        ([], 2, 5),
        (["learn.kl.type=loss"], 3, 6),
        (["learn.critic.type=model"], 3, 9),
        (["learn.critic.type=model", "learn.kl.type=loss"], 4, 10),
    ],
)
def test_models_in_memory(overrides: list[str], num_models: int, copies: int) -> None:
    settings = load_settings(RECIPE, overrides)
    plan = make_plan(settings)
    assert plan.num_models == num_models
    assert plan.memory_bytes == 4 * copies * count_parameters(settings.model.tiny)


def test_words() -> None:
    text = describe_plan(make_plan(load_settings(RECIPE, ["warm_start.type=oracle", "context.window_turns=2"])))
    assert "10 steps of 12 episodes (120 in all)" in text
    assert "300 demonstrations by the oracle" in text
    assert "60 optimizer steps" in text
    assert "note: context.window_turns has no effect" in text
    other = describe_plan(make_plan(load_settings(RECIPE, ["model.path=some/model"])))
    assert "2 copies of the model are held in memory" in other
    assert "demonstrations" not in other

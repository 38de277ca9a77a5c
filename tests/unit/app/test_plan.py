"""What a plan says must follow from the settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnwise.app.models import resolve_model
from turnwise.app.plan import describe_plan, make_plan
from turnwise.config.load import load_settings
from turnwise.pretrained import load_model

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
    assert (plan.demonstrations, plan.eval_episodes) == (0, 400)
    assert plan.notes == ()
    assert plan.to_dict()["episodes"] == 120
    json.dumps(plan.to_dict())


@pytest.mark.parametrize(
    ("overrides", "loaded"),
    [
        ([], ["actor", "engine"]),
        (["learn.kl.type=loss"], ["actor", "engine", "reference"]),
        (["learn.kl.type=loss", "model.lora.type=lora"], ["actor", "engine"]),
        (["learn.critic.type=model"], ["actor", "engine", "critic"]),
        (["learn.critic.type=model", "learn.kl.type=loss"], ["actor", "engine", "reference", "critic"]),
    ],
)
def test_models_in_memory(overrides: list[str], loaded: list[str]) -> None:
    plan = make_plan(load_settings(RECIPE, overrides))
    assert [model.name for model in plan.memory.models if model.is_loaded] == loaded
    for model in plan.memory.models:
        assert f"{model.name} " in describe_plan(plan)
        assert model.reason in describe_plan(plan)


def test_the_plan_of_a_model_on_disk_counts_it_as_it_is() -> None:
    path = resolve_model(load_settings(RECIPE))
    memory = make_plan(load_settings(RECIPE, [f"model.path={path}"])).memory
    engine = next(model for model in memory.models if model.name == "engine")
    assert engine.weight_bytes == sum(p.nbytes for p in load_model(path).parameters())
    half = make_plan(load_settings(RECIPE, [f"model.path={path}", "model.dtype=bfloat16"])).memory
    assert (memory.loaded_bytes or 0) - (half.loaded_bytes or 0) == engine.weight_bytes / 2


def test_words() -> None:
    text = describe_plan(make_plan(load_settings(RECIPE, ["warm_start.type=oracle", "context.window_turns=2"])))
    assert "10 steps of 12 episodes (120 in all)" in text
    assert "300 demonstrations by the oracle" in text
    assert "60 optimizer steps" in text
    assert "note: context.window_turns has no effect" in text
    other = describe_plan(make_plan(load_settings(RECIPE, ["model.path=some/model"])))
    assert "in all unknown size" in other
    assert "demonstrations" not in other

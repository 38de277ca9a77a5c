"""What a plan says must follow from the settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnwise.checks.plan import EpisodeTokens, describe_plan, make_plan
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.loop.policies import resolve_model
from turnwise.models.load import load_model

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


def test_the_json_of_a_plan_has_its_memory_by_part() -> None:
    peak = json.loads(json.dumps(make_plan(load_settings(RECIPE)).to_dict()))["peak"]
    assert {"name", "num_bytes", "arithmetic"} == set(peak["parts"][0])
    assert peak["num_bytes"] == sum(part["num_bytes"] for part in peak["parts"])


@pytest.mark.parametrize(
    ("overrides", "loaded"),
    [
        ([], ["actor"]),
        (["learn.kl.type=loss"], ["actor", "reference"]),
        (["learn.kl.type=loss", "model.lora.type=lora"], ["actor"]),
        (["loop.type=pipelined"], ["actor", "engine"]),
        (["learn.critic.type=model"], ["actor", "critic"]),
        (["learn.critic.type=model", "learn.kl.type=loss"], ["actor", "reference", "critic"]),
    ],
)
def test_models_in_memory(overrides: list[str], loaded: list[str]) -> None:
    plan = make_plan(load_settings(RECIPE, overrides))
    assert [model.name for model in plan.memory.models if model.is_loaded] == loaded
    for model in plan.memory.models:
        assert f"{model.name} " in describe_plan(plan)
        assert model.reason in describe_plan(plan)


def test_ranks_and_what_each_of_them_holds() -> None:
    alone = make_plan(load_settings(RECIPE, ["loop.type=pipelined"]))
    assert (alone.ranks, alone.rank_bytes) == (1, None)
    actor = next(model for model in alone.memory.models if model.name == "actor")
    copies, pieces = (
        make_plan(load_settings(RECIPE, [f"learn.parallel={{type: {kind}, ranks: 4}}"])) for kind in ("ddp", "fsdp")
    )
    # Ranks are other processes, so the engine has weights of its own.
    assert copies.memory == pieces.memory == alone.memory
    assert (copies.rank_bytes, pieces.rank_bytes) == (actor.total_bytes, -(-(actor.total_bytes or 0) // 4))
    assert "4 ranks learn together; each holds" in describe_plan(pieces)
    assert "ranks" not in describe_plan(alone)


def test_the_plan_of_a_model_on_disk_counts_it_as_it_is() -> None:
    path = resolve_model(load_settings(RECIPE))
    memory = make_plan(load_settings(RECIPE, [f"model.path={path}", "loop.type=pipelined"])).memory
    engine = next(model for model in memory.models if model.name == "engine")
    assert engine.weight_bytes == sum(p.nbytes for p in load_model(path).parameters())
    half = make_plan(load_settings(RECIPE, [f"model.path={path}", "model.dtype=bfloat16"])).memory
    assert (memory.loaded_bytes or 0) - (half.loaded_bytes or 0) == engine.weight_bytes / 2


LARGE = ("model.tiny.hidden_size=512", "model.tiny.num_layers=8", "context.max_tokens=512", "eval.episodes=8")


def test_the_most_memory_is_the_sum_of_its_parts_and_each_choice_moves_its_own() -> None:
    def parts(*overrides: str) -> dict[str, int]:
        plan = make_plan(load_settings(RECIPE, [*LARGE, *overrides]))
        assert plan.peak is not None
        found = {part.name: part.num_bytes for part in plan.peak.parts}
        assert "learning" in plan.peak.moment
        assert plan.peak.num_bytes == sum(found.values())
        assert all(f"{name} " in describe_plan(plan) for name in found)
        return found

    plain, lora = parts(), parts("model.lora.type=lora")
    assert lora["actor optimizer"] < plain["actor optimizer"] / 5
    assert parts("loop.type=pipelined")["engine weights"] == plain["actor weights"] - 4 * 513
    assert "reference weights" in parts("learn.kl.type=loss").keys() - plain.keys()
    assert "keys and values" not in plain
    both = parts("loop.type=pipelined")
    assert both["published weights"] == both["engine weights"]
    assert "published weights" not in plain
    assert parts("loop.type=pipelined", "context.max_tokens=256")["keys and values"] == both["keys and values"] / 2
    assert parts("learn.micro_batch_tokens=600")["activations"] < plain["activations"]


@pytest.mark.parametrize(
    "words", [["--gpus", "8"], ["--model", "gpt-5"], ["--model", "gpt:"], ["--model", "qwen2.5-7b", "--gpus", "0"]]
)
def test_what_cannot_be_counted_on_gpus_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "bandit", *words]) == 2
    assert words[-2] in capsys.readouterr().err


def test_a_larger_model_is_counted_on_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "bandit", "--model", "qwen2.5-7b", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [(plan["gpus"], plan["is_lora"]) for plan in plans] == [
        (n, lora) for n in (1, 8, 64) for lora in (False, True)
    ]
    assert all(plan["bytes_per_gpu"] == sum(part["num_bytes"] for part in plan["parts"]) for plan in plans)


def test_a_larger_model_is_counted_by_the_section_for_pretrained_ones(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "frozenlake", "--model", "qwen2.5-7b", "--gpus", "8"]
    assert main(words) == 0
    assert "64 episodes x 768 tokens" in capsys.readouterr().out
    assert main([*words, "context.max_tokens=512"]) == 0
    assert "64 episodes x 512 tokens" in capsys.readouterr().out


def test_words() -> None:
    text = describe_plan(make_plan(load_settings(RECIPE, ["warm_start.type=oracle", "context.window_turns=2"])))
    assert "10 steps of 12 episodes (120 in all)" in text
    assert "300 demonstrations by the oracle" in text
    assert "60 optimizer steps" in text
    assert "note: context.window_turns has no effect" in text
    other = describe_plan(make_plan(load_settings(RECIPE, ["model.path=some/model"])))
    assert "in all unknown size" in other
    assert "demonstrations" not in other


def test_the_teacher_of_a_warm_start_is_named() -> None:
    endpoint = "warm_start={type: endpoint, url: 'http://127.0.0.1:9/v1', model: big, episodes: 20}"
    text = describe_plan(make_plan(load_settings(RECIPE, [endpoint])))
    assert "20 demonstrations by the endpoint" in text
    assert "oracle" not in text


def test_what_episodes_share_is_counted_once() -> None:
    episode = EpisodeTokens(row=158, prompt=126, beginning=80)
    assert episode.live(num_tasks=8, num_episodes=64) == 80 + 8 * 46 + 64 * 32
    assert EpisodeTokens(row=512).live(num_tasks=8, num_episodes=64) == 64 * 512


def test_the_prompts_of_a_model_on_disk_say_how_much_is_played() -> None:
    path = resolve_model(load_settings(RECIPE))
    words = [f"model.path={path}", "loop.type=pipelined", "rollout.groups=4", "rollout.group_size=8"]
    words += ["env.type=bandit", "context.max_tokens=512", "context.max_response_tokens=8", "eval.episodes=1"]

    def live_tokens(*more: str) -> int:
        peak = make_plan(load_settings(RECIPE, [*words, *more])).peak
        assert peak is not None
        (part,) = [part for part in peak.parts if part.name == "keys and values"]
        return int(part.arithmetic.split(" live")[0].replace(",", ""))

    one_turn = live_tokens("rollout.max_turns=1")
    assert live_tokens("rollout.max_turns=1", "context.max_response_tokens=9") == one_turn + 32
    assert live_tokens("rollout.max_turns=1", "rollout.group_size=9") == one_turn + 4 * 8
    # What later observations say is not known: an episode of several turns may fill its context.
    assert live_tokens("rollout.max_turns=3", "context.window=full") > 32 * 256
    assert live_tokens("rollout.max_turns=3", "context.window=single_turn") == one_turn

"""From a task to new weights in the engine, with a real model and a real world, in a few seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.config.load import load_settings
from turnwise.experience.build import build_experiences
from turnwise.learn.pack import pack
from turnwise.loop.components import TrainComponents
from turnwise.types import Experience, GenerateRequest, Group, Sampling, StopReason

from ..small_run import build_components

GAP = 1e-4


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    return tmp_path


def make_parts(**overrides: Any) -> TrainComponents:
    settings = load_settings(
        {
            "env": {"type": "frozen_lake", "size": 3, "hole_rate": 0.2},
            "model": {"tiny": {"hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "vocab_size": 320}},
            "context": {"instructions": "none", "max_response_tokens": 6, "max_tokens": 200},
            "rollout": {"groups": 3, "group_size": 4, "max_turns": 3},
            "credit": {"type": "bi_level_gae"},
            "learn": {"critic": {"type": "value_head"}, "optim": {"lr": 1e-3}},
            "eval": {"episodes": 2},
        },
        overrides,
    )
    return build_components(settings)


async def one_step(components: TrainComponents, step: int = 1) -> tuple[list[Group], list[Experience], Any]:
    """The serial loop's body, written out."""
    groups = await components.explorer.collectors.sampled.collect(
        components.explorer.tasks.take(components.settings.rollout.groups), rollout=step
    )
    components.buffer.add(build_experiences(groups))
    experiences = components.buffer.take(step)
    samples = components.trainer.estimator(experiences, components.trainer.learner.annotate(experiences))
    report = components.trainer.learner.step(pack(samples))
    version = await components.publish(report.policy_version)
    assert version == report.policy_version
    return groups, experiences, report


@pytest.mark.parametrize("window", ["full", "single_turn"])
def test_one_step_from_tasks_to_the_next_policy(cache: Path, window: str) -> None:
    components = make_parts(**{"context.window": window})
    before = {name: tensor.clone() for name, tensor in components.trainer.learner.weights().items()}
    groups, experiences, report = asyncio.run(one_step(components))

    trajectories = [t for group in groups for t in group.trajectories]
    assert len(trajectories) == 12
    assert len({str(t.id) for t in trajectories}) == 12
    assert all(t.turns and not t.stop_reason.is_error for t in trajectories)
    assert {t.stop_reason for t in trajectories} <= {StopReason.TERMINATED, StopReason.MAX_TURNS}

    num_segments = sum(len(t.turns) if window == "single_turn" else 1 for t in trajectories)
    assert len(experiences) == num_segments
    assert all(e.policy_version == 0 for e in experiences)
    sampled = sum(e.segment.num_action_tokens for e in experiences)
    assert report.metrics["learn/action_tokens"] == sampled > 0

    # What the engine recorded while sampling is what the learner computes before its first change.
    assert report.metrics["learn/behavior_gap"] < GAP

    assert (
        report.policy_version
        == components.explorer.rollout.engine.policy_version
        == components.trainer.learner.policy_version
        == 1
    )
    after = components.trainer.learner.weights()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    served = components.explorer.rollout.engine._model.state_dict()
    assert all(torch.equal(served[name], after[name]) for name in after)
    assert all(served[name].data_ptr() == after[name].data_ptr() for name in after)


PIPELINED, RARE, HALF = {"loop.type": "pipelined"}, {"sync.interval": 2}, {"model.dtype": "bfloat16"}


@pytest.mark.parametrize("settings", [PIPELINED, RARE, HALF], ids=["pipelined", "rare_sync", "bfloat16"])
def test_where_weights_cannot_be_shared_the_engine_has_its_own(cache: Path, settings: dict[str, Any]) -> None:
    components = make_parts(**settings)
    served, own = components.explorer.rollout.engine._model.state_dict(), components.trainer.learner.weights()
    assert all(served[name].data_ptr() != own[name].data_ptr() for name in own)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]], ids=["all", "some"])
def test_adapters_are_sampled_from_in_place(cache: Path, targets: Any) -> None:
    """The gap of the second step shows that the engine adds what the adapters have learnt."""
    lora = {"model.lora.type": "lora", "model.lora.target_modules": targets, "learn.optim.lr": 3e-2}
    components = make_parts(**lora)

    async def run() -> list[Any]:
        return [(await one_step(components, step))[2] for step in (1, 2, 3)]

    reports = asyncio.run(run())
    assert all(report.metrics["learn/behavior_gap"] < GAP for report in reports)
    assert reports[-1].policy_version == components.explorer.rollout.engine.policy_version == 3
    own = {p.data_ptr() for p in components.trainer.learner.model.parameters()}
    assert {p.data_ptr() for p in components.explorer.rollout.engine._model.parameters()} == own
    published, plain = components.trainer.learner.weights(), components.trainer.learner.model.state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(published[name], plain[name.replace(".weight", ".base_layer.weight")])


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_temperature_does_not_open_a_gap(cache: Path, temperature: float) -> None:
    _, experiences, report = asyncio.run(one_step(make_parts(**{"rollout.temperature": temperature})))
    assert report.metrics["learn/behavior_gap"] < GAP
    assert np.abs(np.concatenate([e.segment.behavior_logprobs for e in experiences])).max() > 0.1


def test_the_next_rollout_is_the_new_policys(cache: Path) -> None:
    """Two steps in a row: the second gap shows that the engine really serves the published weights."""
    components = make_parts()

    async def run() -> list[Any]:
        return [await one_step(components, step) for step in (1, 2)]

    (_, _, first), (_, experiences, second) = asyncio.run(run())
    assert {e.policy_version for e in experiences} == {1}
    assert (first.policy_version, second.policy_version, components.explorer.rollout.engine.policy_version) == (1, 2, 2)
    assert second.metrics["learn/behavior_gap"] < GAP


def test_old_weights_in_the_engine_do_open_a_gap(cache: Path) -> None:
    """The gap can fail: without publishing, the second batch was sampled by another policy."""
    components = make_parts(**{"learn.optim.lr": 1e-2, "loop.type": "pipelined"})

    async def run() -> Any:
        groups = await components.explorer.collectors.sampled.collect(components.explorer.tasks.take(3), rollout=1)
        experiences = build_experiences(groups)
        samples = components.trainer.estimator(experiences, components.trainer.learner.annotate(experiences))
        components.trainer.learner.step(pack(samples))
        return (await one_step(components))[2]

    assert asyncio.run(run()).metrics["learn/behavior_gap"] > 10 * GAP


def test_the_same_settings_give_the_same_step(cache: Path) -> None:
    def run() -> tuple[list[list[int]], dict[str, torch.Tensor]]:
        components = make_parts()
        _, experiences, _ = asyncio.run(one_step(components))
        return [e.segment.token_ids.tolist() for e in experiences], dict(components.trainer.learner.weights())

    (tokens, weights), (tokens_again, weights_again) = run(), run()
    assert tokens == tokens_again
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


def test_recorded_logprobs_are_those_of_a_plain_forward_pass(cache: Path) -> None:
    """Asked again alone, the engine gives what a plain forward pass gives, and so does what it recorded."""
    components = make_parts()

    async def run() -> None:
        groups = await components.explorer.collectors.sampled.collect(components.explorer.tasks.take(3), rollout=1)
        segment = groups[0].trajectories[0].segments[0]
        start = int(np.flatnonzero(segment.loss_mask)[0])
        likeliest = await components.explorer.rollout.engine.generate(
            GenerateRequest(prompt_ids=segment.token_ids[:start], sampling=Sampling(top_k=1, max_new_tokens=1), seed=0)
        )
        assert likeliest.behavior_logprobs[0] == 0
        model = components.trainer.learner.actor.model.eval()
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(segment.token_ids[None].astype(np.int64))).logits[0].double()
        expected = torch.log_softmax(logits, -1)[np.arange(len(segment) - 1), segment.token_ids[1:].astype(np.int64)]
        mask = segment.loss_mask[1:]
        np.testing.assert_allclose(segment.behavior_logprobs[1:][mask], expected.numpy()[mask], atol=GAP)
        assert int(logits[start - 1].argmax()) == int(likeliest.token_ids[0])

    asyncio.run(run())

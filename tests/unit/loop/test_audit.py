"""A batch that is not what was sampled stops the run, or is left out; a sound one costs nothing but a look."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.small_run import SMALL_LAKE, build_components
from turnwise.config.load import load_settings
from turnwise.errors import AuditError
from turnwise.experience.build import build_experiences
from turnwise.infra.threads import run_async
from turnwise.loop.components import TrainComponents
from turnwise.loop.serial import update_policy
from turnwise.loop.step import collect
from turnwise.types import Experience


def open_parts(path: Path, *overrides: str) -> TrainComponents:
    return build_components(load_settings("frozenlake", [*SMALL_LAKE, *overrides]), run_path=path)


def play(components: TrainComponents) -> list[Experience]:
    return build_experiences(run_async(collect(components.explorer, 1, components.hooks)).kept)


def flip_first_group(experiences: Sequence[Experience]) -> list[Experience]:
    group = experiences[0].id.trajectory.group
    return [replace(e, turn_rewards=e.turn_rewards + 1) if e.id.trajectory.group == group else e for e in experiences]


def rescale_logprobs(experiences: Sequence[Experience]) -> list[Experience]:
    """As an engine that says nothing of their origin would record them at another temperature."""
    return [
        replace(e, provenance=None, segment=replace(e.segment, behavior_logprobs=e.segment.behavior_logprobs * 1.1))
        for e in experiences
    ]


def test_a_sound_batch_is_learnt_from(tmp_path: Path) -> None:
    components = open_parts(tmp_path)
    update_policy(components.trainer, play(components), components.hooks)
    metrics = components.hooks.metrics()
    assert metrics["audit/breaches"] == 0
    assert metrics["audit/unsealed"] == 0
    assert metrics["audit/gap"] < 1e-5
    assert not (tmp_path / "audit.jsonl").exists()


def test_a_changed_reward_stops_the_run_with_a_report(tmp_path: Path) -> None:
    components = open_parts(tmp_path)
    version = components.trainer.learner.policy_version
    with pytest.raises(AuditError, match=r"seal: .*turn 0.*written by engine local, request") as caught:
        update_policy(components.trainer, flip_first_group(play(components)), components.hooks)
    assert caught.value.check == "seal"
    assert components.trainer.learner.policy_version == version
    told = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {line["check"] for line in told} == {"seal"}


def test_a_group_can_be_left_out_instead(tmp_path: Path) -> None:
    components = open_parts(tmp_path, "audit.on_breach=quarantine")
    experiences = play(components)
    result = update_policy(components.trainer, flip_first_group(experiences), components.hooks)
    group = experiences[0].id.trajectory.group
    assert components.hooks.metrics()["audit/quarantined_groups"] == 1
    assert {e.id.trajectory.group for e in result.experiences} == {e.id.trajectory.group for e in experiences} - {group}


def test_wrong_log_probs_are_found_before_the_update(tmp_path: Path) -> None:
    components = open_parts(tmp_path, "rollout.temperature=1.0")
    unsealed = rescale_logprobs(play(components))
    with pytest.raises(AuditError, match=r"gap: .*expected the log-prob"):
        update_policy(components.trainer, unsealed, components.hooks)
    assert components.trainer.learner.policy_version == 0


def test_without_a_sample_they_are_found_by_the_update_itself(tmp_path: Path) -> None:
    components = open_parts(tmp_path, "audit.rescored_tokens=0")
    unsealed = rescale_logprobs(play(components))
    with pytest.raises(AuditError, match="nothing of it is published"):
        update_policy(components.trainer, unsealed, components.hooks)


def test_a_wide_gap_passes_where_the_settings_allow_it(tmp_path: Path) -> None:
    components = open_parts(tmp_path, "audit.max_gap=5.0")
    unsealed = rescale_logprobs(play(components))
    update_policy(components.trainer, unsealed, components.hooks)
    assert components.hooks.metrics()["audit/gap"] > 1e-3


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    components = open_parts(tmp_path, "audit.is_on=false")
    update_policy(components.trainer, flip_first_group(play(components)), components.hooks)
    assert components.hooks.metrics() == {}

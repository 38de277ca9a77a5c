"""Settings reach the components they are for."""

from __future__ import annotations

import pytest

from turnwise.config.load import load_settings
from turnwise.errors import ConfigError
from turnwise.rollout.episode import RolloutLimits

from ...small_run import SMALL_LAKE, build_components


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), RolloutLimits()),
        (("rollout.max_concurrent=3",), RolloutLimits(max_concurrent=3)),
        (("rollout.episode_timeout_s=1.5",), RolloutLimits(timeout_s=1.5)),
        (("rollout.max_retries=2",), RolloutLimits(max_retries=2)),
    ],
)
def test_the_runners_limits_are_those_of_the_settings(words: tuple[str, ...], expected: RolloutLimits) -> None:
    components = build_components(load_settings("frozenlake", [*SMALL_LAKE, *words]))
    assert components.explorer.collectors.sampled.rules.limits == expected
    assert components.explorer.rollout.eval_collector.rules.limits == expected


def test_the_workflow_has_the_budget_and_the_arguments_of_the_settings() -> None:
    own = build_components(
        load_settings(
            "frozenlake",
            [*SMALL_LAKE, "rollout.workflow=step_wise_environment", "rollout.workflow_args.max_env_steps=1"],
        )
    )
    assert own.explorer.collectors.sampled.rules.workflow_args == {"max_env_steps": 1}
    assert own.explorer.collectors.sampled.states.limits_of("frozen_lake").max_turns == own.settings.rollout.max_turns


@pytest.mark.parametrize(
    ("workflow", "given", "told"),
    [
        (
            "step_wise_environment",
            "max_env_step=3",
            r"max_env_step: .* no such argument\. Did you mean 'max_env_steps'",
        ),
        ("step_wise_environment", "max_env_steps=0", r"max_env_steps: 0 given; expected a whole number above 0"),
        ("step_wise_environment", "max_env_steps=true", r"max_env_steps: True given"),
        ("reward_propagation_environment", "max_env_steps=2.5", r"max_env_steps: 2\.5 given"),
        ("single_turn", "max_env_steps=2", r"max_env_steps: SingleTurnWorkflow takes no such argument"),
        ("tool_calling", "max_env_steps=2", r"tools is None; expected a list of functions"),
        ("tool_calling", "tools=[json:loads_it]", r"tools.*json.*loads_it"),
        ("reflect_and_retry", "max_attempts=0", r"max_attempts: 0 given"),
        ("agent", "size=3", r"agent_cls is None; expected 'package\.module:Class'"),
    ],
)
def test_arguments_that_a_workflow_cannot_use_are_told_before_anything_is_played(
    workflow: str, given: str, told: str
) -> None:
    words = [*SMALL_LAKE, f"rollout.workflow={workflow}", f"rollout.workflow_args.{given}"]
    with pytest.raises(ConfigError, match=rf"rollout\.workflow_args\.{told}"):
        build_components(load_settings("frozenlake", words))

"""Settings reach the parts they are for."""

from __future__ import annotations

import pytest

from turnwise.config.load import load_settings
from turnwise.loop.build import build_train
from turnwise.rollout.runner import RunnerLimits
from turnwise.rollout.workflow import EnvironmentFront
from turnwise.rollout.workflow_front import WorkflowFront

from ...small_run import SMALL_LAKE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), RunnerLimits()),
        (("rollout.max_concurrent=3",), RunnerLimits(max_concurrent=3)),
        (("rollout.episode_timeout_s=1.5",), RunnerLimits(timeout_s=1.5)),
        (("rollout.max_retries=2",), RunnerLimits(max_retries=2)),
    ],
)
def test_the_runners_limits_are_those_of_the_settings(words: tuple[str, ...], expected: RunnerLimits) -> None:
    parts = build_train(load_settings("frozenlake", [*SMALL_LAKE, *words]))
    assert parts.proxy._limits == expected
    assert parts.eval_proxy._limits == expected


def test_the_workflow_decides_who_owns_the_world() -> None:
    managed = build_train(load_settings("frozenlake", SMALL_LAKE))
    owned = build_train(
        load_settings(
            "frozenlake", [*SMALL_LAKE, "rollout.workflow=single_turn", "rollout.workflow_args.max_env_steps=1"]
        )
    )
    assert isinstance(managed.proxy.front, EnvironmentFront)
    assert isinstance(owned.proxy.front, WorkflowFront)
    (terms,) = owned.proxy.front._terms.values()
    assert terms.workflow_args == {"max_env_steps": 1}
    assert terms.limits.max_turns == owned.settings.rollout.max_turns

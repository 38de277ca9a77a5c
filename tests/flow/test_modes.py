"""Runs out of the box: a few lines of settings train for real, in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.app.run import Run, train

from ..small_run import SMALL, without_plots

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}}


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def small(recipe: dict[str, Any], run_dir: Path, *overrides: str) -> Run:
    return train(recipe, [*SMALL, *overrides], run_dir=run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({}, "grpo"),
        ({"multi_turn": True, "use_reward_model": False, "use_reward_critic": False}, "grpo"),
        ({"use_reward_critic": True}, "gae"),
    ],
)
def test_an_environment_alone_trains(tmp_path: Path, more: dict[str, Any], rule: str) -> None:
    run = small({**LAKE, **more}, tmp_path / "run")
    assert run.settings.credit.type == rule
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert run.summary.policy_version == 2


@pytest.mark.slow
def test_an_environment_and_a_judge_together_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scores.py").write_text("def score(prompt, response):\n    return 3.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = "reward.judge={type: function, target: 'my_scores:score', weight: 0.5}"
    rows = small(LAKE, tmp_path / "run", judge).metrics()
    for row in rows[1:]:
        assert row["reward/judge"] == 1.5
        assert row["rollout/return"] == pytest.approx(row["reward/env"] + 1.5)


@pytest.mark.slow
def test_a_judge_adds_to_what_a_workflow_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_flow.py").write_text(
        "from turnwise import StepWiseRewardWorkflow\n"
        "class Flow(StepWiseRewardWorkflow):\n"
        "    def step(self, step_num):\n"
        "        self.model.chat([{'role': 'user', 'content': 'hello'}])\n"
        "        return False\n"
        "    def reward(self, exps, step_num):\n"
        "        return 0.25\n"
        "def score(prompt, response):\n    return 3.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = {
        "env": {"type": "prompts"},
        "context": {"answer": {"type": "plain"}},
        "rollout": {"workflow": "my_flow:Flow"},
        "reward": {"judge": {"type": "function", "target": "my_flow:score"}},
    }
    rows = small(recipe, tmp_path / "run").metrics()
    assert [(row["reward/env"], row["reward/judge"]) for row in rows[1:]] == [(0.25, 3.0)] * 2

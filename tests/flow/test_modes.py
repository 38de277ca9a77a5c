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

"""A run with an environment that hangs and crashes: it finishes, and says how many episodes were lost and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_run import SMALL_MODEL, without_plots
from turnwise.run.api import train

RECIPE = {
    "env": {"type": "tests.unit.envs.faulty:FaultyEnv", "train": {"hang_rate": 0.01, "crash_rate": 0.05}},
    "context": {"window": "single_turn", "instructions": "none", "answer": {"type": "plain"}, "max_response_tokens": 2},
    "credit": {"type": "reinforce"},
    "rollout": {"isolation": {"type": "process", "time_limit_s": 5.0}},
}


@pytest.mark.slow
def test_a_hanging_and_crashing_environment_costs_episodes_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plots(monkeypatch)
    sizes = ["rollout.groups=8", "rollout.group_size=2", "rollout.max_turns=3", "learn.steps=4", "eval.episodes=3"]
    run = train(RECIPE, [*SMALL_MODEL, *sizes, "report.tensorboard=false"], run_dir=tmp_path / "run")
    summary, metrics = run.summary, run.metrics()
    assert summary.steps == 4
    num_failed = round(sum(row["rollout/errors"] for row in metrics[1:]) * 16)
    assert sum(summary.failures.values()) == num_failed > 0
    assert any("exit code 3" in cause for cause in summary.failures)
    assert all("exit code 3" in cause or "time_limit_s" in cause for cause in summary.failures)
    assert all(row["learn/rows"] > 0 for row in metrics[1:])
    # Evaluation plays without faults, and every one of its episodes goes to its end.
    assert summary.success_after == 1.0

"""A run in an environment that does everything an author must not do: it finishes, and tells every cause."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.small_run import SMALL_LAKE, SMALL_MODEL, without_plots
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.run.api import train

RECIPE = {
    "env": {"type": "tests.unit.envs.hostile:HostileEnv"},
    "context": {"window": "single_turn", "instructions": "none", "answer": {"type": "plain"}, "max_response_tokens": 2},
    "credit": {"type": "reinforce"},
}
CAUSES = (
    "CancelledError",
    "UnspeakableError: an exception whose text cannot be read",
    "float32",
    "info['success'] = 'no'",
    "rollout.episode_timeout_s = 5",
    "SystemExit: 3",
)


@pytest.mark.slow
def test_a_hostile_environment_costs_episodes_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    sizes = ["rollout.groups=10", "rollout.group_size=2", "rollout.max_turns=2", "learn.steps=2", "eval.episodes=3"]
    limits = ["rollout.episode_timeout_s=5", "report.trajectories_per_step=20", "report.tensorboard=false"]
    run = train(RECIPE, [*SMALL_MODEL, *sizes, *limits], run_dir=tmp_path / "run")
    assert run.summary.steps == 2
    for cause in CAUSES:
        assert any(cause in told for told in run.summary.failures), (cause, run.summary.failures)
    assert len(run.summary.failures) == len(CAUSES)
    # Two siblings of one task in each step block their threads for ever, and nobody waits for them.
    assert run.metrics()[-1]["rollout/left_behind"] == 4.0
    assert run.summary.success_after == 1.0


class NeverCloses(FrozenLake):
    def close(self) -> None:
        raise OSError("close is broken")


class GoesElsewhere(FrozenLake):
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        os.chdir("/")
        return super().reset(seed, split=split, dynamics_seed=dynamics_seed)


class StopsGradients(FrozenLake):
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        torch.set_grad_enabled(False)
        return super().reset(seed, split=split, dynamics_seed=dynamics_seed)


@pytest.mark.slow
@pytest.mark.parametrize("env", [NeverCloses, GoesElsewhere, StopsGradients])
def test_an_environment_that_changes_the_process_does_not_break_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: type[FrozenLake]
) -> None:
    without_plots(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with torch.enable_grad():
        run = train("frozenlake", [*SMALL_LAKE, f"env.type={__name__}:{env.__name__}"], run_dir="run")
    assert run.path == tmp_path / "run"
    assert run.summary.steps == 2
    assert run.metrics()[-1]["learn/grad_norm"] > 0

"""A run in an environment that does everything an author must not do: it finishes, and tells every cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_run import SMALL_MODEL, without_plots
from turnwise.app.run import train

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

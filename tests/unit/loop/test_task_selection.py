"""A finite set of tasks in a real run: which are played, and an exact resume of the selector."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from turnwise.report.trajectories import read_trajectories
from turnwise.run.api import Run, resume, train

from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow

WORDS = [
    *SMALL_LAKE,
    "learn.steps=4",
    "report.checkpoint_every=2",
    "report.trajectories_per_step=6",
    "tasks.num_tasks=5",
]


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)


def seeds(run: Run, step: int) -> list[int]:
    trajectories = read_trajectories(run.path / "trajectories" / f"step-{step:06d}.jsonl")
    return [t.task.seed - 10_000 for t in trajectories][::2]


@pytest.mark.parametrize("selector", ["sequential", "random", "difficulty"])
def test_a_resumed_run_goes_on_with_the_same_tasks(tmp_path: Path, selector: str) -> None:
    run = train("frozenlake", [*WORDS, f"tasks.selector={selector}"], run_dir=tmp_path / "run")
    chosen = [seeds(run, step) for step in (1, 2, 3, 4)]
    assert all(len(set(step)) == 3 and set(step) <= set(range(5)) for step in chosen)
    if selector == "sequential":
        assert chosen == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]
    shutil.rmtree(run.path / "checkpoints" / "step-000004")
    resumed = resume(run.path)
    assert [seeds(resumed, step) for step in (1, 2, 3, 4)] == chosen


@pytest.mark.parametrize("selector", ["sequential", "random", "difficulty"])
def test_rollouts_that_overlap_choose_their_own_tasks(tmp_path: Path, selector: str) -> None:
    ahead = ["loop.type=pipelined", "sync.max_staleness=2", f"tasks.selector={selector}"]
    run = train("frozenlake", [*WORDS, *ahead], run_dir=tmp_path / "run")
    chosen = [seeds(run, step) for step in (1, 2, 3, 4)]
    assert all(len(set(step)) == 3 and set(step) <= set(range(5)) for step in chosen)
    if selector == "sequential":
        assert chosen == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]
    shutil.rmtree(run.path / "checkpoints" / "step-000004")
    again = resume(run.path)
    assert again.summary.steps == 4
    assert seeds(again, 3) == chosen[2]

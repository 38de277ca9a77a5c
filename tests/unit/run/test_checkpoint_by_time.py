"""`report.checkpoint_minutes`: a run that is killed has a checkpoint as old as that, and goes on from it exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.run.test_run import same_weights, untimed
from turnwise.report.run_dir import RunDirectory
from turnwise.run import checkpoints as checkpointer
from turnwise.run import run_recorder as recording
from turnwise.run import training_run as training
from turnwise.run.api import Run, resume, train
from turnwise.run.checkpoints import Checkpoints

from ...small_run import SMALL_LAKE, without_plots

pytestmark = pytest.mark.slow


class Killed(BaseException):
    pass


class Clock:
    """Every step takes a minute, and every checkpoint `save_s`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.save_s, self.dies_in = 0.0, 0.0, -1
        plain = recording.ProgressDisplay.update

        def update(display: Any, step: int, *rest: Any) -> None:
            plain(display, step, *rest)
            self.now_s += 60
            if step == self.dies_in:
                raise Killed

        plain_save = checkpointer.save_checkpoint

        def save(*given: Any) -> None:
            plain_save(*given)
            self.now_s += self.save_s

        patch.setattr(recording.ProgressDisplay, "update", update)
        patch.setattr(checkpointer, "save_checkpoint", save)
        patch.setattr(training, "Checkpoints", partial(Checkpoints, clock=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    without_plots(monkeypatch)
    return Clock(monkeypatch)


def saved(run: Run) -> list[int]:
    return RunDirectory.open(run.path).checkpoint_steps()


def test_a_run_killed_between_checkpoints_goes_on_exactly(tmp_path: Path, clock: Clock) -> None:
    words = [*SMALL_LAKE, "learn.steps=6"]
    straight = train("frozenlake", words, run_dir=tmp_path / "straight")
    assert saved(straight) == [6]
    clock.dies_in = 5
    with pytest.raises(Killed):
        train("frozenlake", words, run_dir=tmp_path / "killed")
    # Two minutes by default; the one of step 2 has made room for the one of step 4.
    assert saved(Run(tmp_path / "killed")) == [4]
    clock.dies_in = -1
    resumed = resume(tmp_path / "killed")
    assert untimed(resumed) == untimed(straight)
    assert same_weights(resumed, straight)


def test_checkpoints_that_steps_ask_for_stay(tmp_path: Path, clock: Clock) -> None:
    words = [*SMALL_LAKE, "learn.steps=6", "report.checkpoint_minutes=2", "report.checkpoint_every=3"]
    assert saved(train("frozenlake", words, run_dir=tmp_path / "run")) == [3, 6]
    assert clock.now_s == 360
    words = [*SMALL_LAKE, "learn.steps=5", "report.checkpoint_every=3", "report.checkpoint_minutes=0"]
    assert saved(train("frozenlake", words, run_dir=tmp_path / "by_steps")) == [3, 5]


def test_saving_takes_at_most_a_twentieth_of_the_time(tmp_path: Path, clock: Clock) -> None:
    clock.save_s, clock.dies_in = 12.0, 7
    with pytest.raises(Killed):
        train("frozenlake", [*SMALL_LAKE, "learn.steps=9"], run_dir=tmp_path / "run")
    # Saved after two minutes, then four minutes later: twenty times the twelve seconds.
    assert saved(Run(tmp_path / "run")) == [6]


@pytest.mark.parametrize("every", [0, 3])
def test_a_way_back_from_a_collapse_is_kept_by_steps_whatever_the_clock_says(
    tmp_path: Path, clock: Clock, every: int
) -> None:
    words = [*SMALL_LAKE, "learn.steps=7", "watch.stop=collapse", "watch.window=3", f"report.checkpoint_every={every}"]
    clock.dies_in = 6
    with pytest.raises(Killed):
        train("frozenlake", [*words, "report.checkpoint_minutes=1"], run_dir=tmp_path / "run")
    steps = saved(Run(tmp_path / "run"))
    assert {3, 5} <= set(steps) <= {0, 3, 5}
    clock.dies_in = -1
    assert set(saved(resume(tmp_path / "run"))) <= {0, 3, 5, 6, 7}

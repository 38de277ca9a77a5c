"""`report.checkpoint_minutes`: a run that is killed has a checkpoint as old as that, and goes on from it exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnwise.app import recording, training
from turnwise.app.checkpointer import Checkpointer
from turnwise.app.run import Run, resume, train
from turnwise.report.run_dir import RunDirectory

from ...small_run import SMALL_LAKE, without_plots
from .test_run import same_weights, untimed

pytestmark = pytest.mark.slow


class Killed(BaseException):
    pass


class Clock:
    """Every step takes a minute."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.dies_in = 0.0, -1
        plain = recording.ProgressDisplay.update

        def update(display: Any, step: int, *rest: Any) -> None:
            plain(display, step, *rest)
            self.now_s += 60
            if step == self.dies_in:
                raise Killed

        patch.setattr(recording.ProgressDisplay, "update", update)
        patch.setattr(training, "Checkpointer", partial(Checkpointer, clock=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    without_plots(monkeypatch)
    return Clock(monkeypatch)


def saved(run: Run) -> list[int]:
    return RunDirectory.open(run.path).checkpoint_steps()


def test_a_run_killed_between_checkpoints_goes_on_exactly(tmp_path: Path, clock: Clock) -> None:
    words = [*SMALL_LAKE, "learn.steps=6", "report.checkpoint_minutes=2"]
    straight = train("frozenlake", words, run_dir=tmp_path / "straight")
    assert saved(straight) == [6]
    clock.dies_in = 5
    with pytest.raises(Killed):
        train("frozenlake", words, run_dir=tmp_path / "killed")
    # The one of step 2 has made room for the one of step 4.
    assert saved(Run(tmp_path / "killed")) == [4]
    clock.dies_in = -1
    resumed = resume(tmp_path / "killed")
    assert untimed(resumed) == untimed(straight)
    assert same_weights(resumed, straight)


def test_checkpoints_that_steps_ask_for_stay(tmp_path: Path, clock: Clock) -> None:
    words = [*SMALL_LAKE, "learn.steps=6", "report.checkpoint_minutes=2", "report.checkpoint_every=3"]
    assert saved(train("frozenlake", words, run_dir=tmp_path / "run")) == [3, 6]
    assert clock.now_s == 360
    words = [*SMALL_LAKE, "learn.steps=5", "report.checkpoint_every=3"]
    assert saved(train("frozenlake", words, run_dir=tmp_path / "by_steps")) == [3, 5]

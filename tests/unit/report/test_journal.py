"""What must outlive the process: episodes of a rollout that is not stored yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.report.journal import TrajectoryJournal
from turnwise.types import StopReason

from .test_trajectories import assert_equal


def test_a_journal_holds_what_was_appended_also_by_another_process(tmp_path: Path, make_trajectory, make_turn) -> None:
    failed = make_trajectory(2, stop_reason=StopReason.TIMEOUT, failure="too long", turns=(), segments=())
    given = [make_trajectory(0), make_trajectory(1, turns=(make_turn(0, step=4),), rewards=(-0.3,)), failed]
    assert TrajectoryJournal(tmp_path / "new", 7).read() == []
    for trajectory in given:
        TrajectoryJournal(tmp_path / "new", 7).append(trajectory)
    read = TrajectoryJournal(tmp_path / "new", 7).read()
    for one, other in zip(given, read, strict=True):
        assert_equal(one, other)
    assert TrajectoryJournal(tmp_path / "new", 8).read() == []
    for _ in range(2):
        TrajectoryJournal(tmp_path / "new", 7).remove()
        assert TrajectoryJournal(tmp_path / "new", 7).read() == []


@pytest.mark.parametrize("num_bytes", [1, 20, -1])
def test_a_line_that_was_cut_off_hurts_no_other(tmp_path: Path, make_trajectory, num_bytes: int) -> None:
    journal = TrajectoryJournal(tmp_path, 1)
    journal.append(make_trajectory(0))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:num_bytes])
    assert [trajectory.id.sibling for trajectory in journal.read()] == [0]
    journal.append(make_trajectory(1))
    assert [trajectory.id.sibling for trajectory in journal.read()] == [0, 1]


def test_a_line_that_is_damaged_is_named_and_left_out(
    tmp_path: Path, make_trajectory, caplog: pytest.LogCaptureFixture
) -> None:
    journal = TrajectoryJournal(tmp_path, 1)
    journal.append(make_trajectory(0))
    journal.append(make_trajectory(1))
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    begin = text.index('"segments": "') + len('"segments": "')
    file.write_text(text[:begin] + "AAAA" + text[begin + 4 :])
    assert [trajectory.id.sibling for trajectory in journal.read()] == [1]
    assert f"{file}: an episode is damaged, and will be played again" in caplog.text

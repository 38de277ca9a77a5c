"""What must outlive the process: episodes of a rollout that is not stored yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.report.trajectories import TrajectoryJournal, find_damaged_episodes
from turnwise.types import StopReason

from .test_trajectories import assert_equal


def test_a_journal_holds_what_was_appended_also_by_another_process(tmp_path: Path, make_trajectory, make_turn) -> None:
    failed = make_trajectory(
        2, stop_reason=StopReason.TIMEOUT, is_success=None, failure="too long", turns=(), segments=()
    )
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


def test_a_line_that_is_damaged_is_left_out_with_a_word(
    tmp_path: Path, make_trajectory, caplog: pytest.LogCaptureFixture
) -> None:
    journal = TrajectoryJournal(tmp_path, 1)
    for sibling in (0, 1):
        journal.append(make_trajectory(sibling))
    (file,) = tmp_path.iterdir()
    # A number that JSON reads as well as the one before it: the checksum alone can tell.
    file.write_text(file.read_text().replace('"reward": ', '"reward": 1', 1))
    assert [trajectory.id.sibling for trajectory in journal.read()] == [1]
    assert f"{file}: an episode is damaged" in caplog.text


def test_what_is_damaged_is_found_without_touching_the_file(tmp_path: Path, make_trajectory) -> None:
    journal = TrajectoryJournal(tmp_path, 1)
    for sibling in (0, 1):
        journal.append(make_trajectory(sibling))
    journal.finish()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    assert find_damaged_episodes(file) == []
    damaged = whole.replace(b'"reward": ', b'"reward": 1', 1) + whole[:20]
    file.write_bytes(damaged)
    assert find_damaged_episodes(file) == ["line 1 is damaged: its checksum is another one"]
    assert file.read_bytes() == damaged


def test_a_rollout_is_whole_when_its_last_line_says_so(tmp_path: Path, make_trajectory) -> None:
    journal = TrajectoryJournal(tmp_path, 1)
    journal.append(make_trajectory(0))
    assert journal.read_whole() == []
    assert list(tmp_path.iterdir()) == []
    journal.append(make_trajectory(0))
    journal.finish()
    assert [trajectory.id.sibling for trajectory in journal.read_whole()] == [0]

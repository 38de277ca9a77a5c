from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from turnwise.errors import RunError
from turnwise.report.trajectories import TrajectoryWriter, read_trajectories
from turnwise.types import StopReason, Trajectory


def assert_equal(one: Trajectory, other: Trajectory) -> None:
    """Segments compare by identity, so they are compared by content here."""
    for name in (f.name for f in fields(Trajectory) if f.name != "segments"):
        assert getattr(one, name) == getattr(other, name), name
    assert len(one.segments) == len(other.segments)
    for mine, theirs in zip(one.segments, other.segments, strict=True):
        for name in ("token_ids", "loss_mask", "behavior_logprobs", "turn_ids"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
            assert getattr(mine, name).dtype == getattr(theirs, name).dtype


def test_round_trip(tmp_path: Path, make_trajectory, make_turn) -> None:
    odd = make_turn(
        0,
        response_text="a\u2028b\n\x1b[0m é",
        actions=("Up", "Down"),
        info={"won": False, "at": [1, 2], "why": None},
        step=4,
    )
    given = [
        make_trajectory(0, final_observation="_\n√"),
        make_trajectory(1, turns=(odd,), rewards=(-0.3,), is_success=None),
        make_trajectory(2, stop_reason=StopReason.ENGINE_ERROR, failure="EngineError: gone", turns=(), segments=()),
    ]
    path = TrajectoryWriter(tmp_path / "trajectories").write(12, given)

    assert path == tmp_path / "trajectories" / "step-000012.jsonl"
    read = read_trajectories(path)
    assert len(read) == 3
    for one, other in zip(given, read, strict=True):
        assert_equal(one, other)


def test_log_probs_that_are_not_finite_come_back(tmp_path: Path, make_trajectory) -> None:
    given = make_trajectory(0)
    for place, value in zip(np.flatnonzero(given.segments[0].loss_mask), (np.nan, -np.inf), strict=False):
        given.segments[0].behavior_logprobs[place] = value
    (read,) = read_trajectories(TrajectoryWriter(tmp_path).write(1, [given]))
    assert_equal(given, read)


def test_it_appends_up_to_the_limit_of_the_step(tmp_path: Path, make_trajectory) -> None:
    writer = TrajectoryWriter(tmp_path, max_per_step=3)
    writer.write(1, [make_trajectory(0), make_trajectory(1)])
    path = writer.write(1, [make_trajectory(2), make_trajectory(3)])
    other = writer.write(2, [make_trajectory(4)])
    assert [trajectory.id.sibling for trajectory in read_trajectories(path)] == [0, 1, 2]
    assert [trajectory.id.sibling for trajectory in read_trajectories(other)] == [4]


def test_info_that_json_does_not_have_becomes_plain(tmp_path: Path, make_trajectory, make_turn) -> None:
    info = {
        "n": np.int64(3),
        "grid": np.eye(2),
        "pair": (1, 2),
        "bad": float("nan"),
        "path": Path("x"),
        5: np.bool_(True),
    }
    path = TrajectoryWriter(tmp_path).write(1, [make_trajectory(turns=(make_turn(0, info=info),), rewards=(0.0,))])
    (turn,) = read_trajectories(path)[0].turns
    assert turn.info == {"n": 3, "grid": [[1, 0], [0, 1]], "pair": [1, 2], "bad": None, "path": "x", "5": True}


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("turns"),
        lambda record: record.update(id="nonsense"),
        lambda record: record.update(id=record["task"]),
        lambda record: record.update(segments=record["segments"][8:]),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, make_trajectory, damage) -> None:
    path = TrajectoryWriter(tmp_path).write(1, [make_trajectory(0), make_trajectory(1)])
    first, second = path.read_text().splitlines()
    record = json.loads(second)
    damage(record)
    path.write_text(f"{first}\n{json.dumps(record)}\n")
    with pytest.raises(RunError, match="line 2: expected a trajectory"):
        read_trajectories(path)


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_info_that_json_cannot_hold_is_shown_and_stops_no_run(
    tmp_path: Path, make_trajectory: Callable[..., Trajectory]
) -> None:
    """An integer of 5,000 digits, a list that holds itself, and an object without words."""
    endless: list[object] = []
    endless.append(endless)
    played = make_trajectory()
    first, *rest = played.turns
    hostile = replace(first, info={"digits": 10**5000, "endless": endless, "speechless": Speechless(), "fine": 2})
    path = TrajectoryWriter(tmp_path).write(1, [replace(played, turns=(hostile, *rest))])
    (read,) = read_trajectories(path)
    assert read.turns[0].info["fine"] == 2
    assert "int" in read.turns[0].info["digits"]

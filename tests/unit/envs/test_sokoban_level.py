"""Levels: solvable, as hard as asked, apart by split, and the same for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.sokoban import Sokoban
from turnwise.envs.sokoban.level import Distances, Level, Room, SokobanParams, draw_level, split_of
from turnwise.errors import TaskError

from .rooms import slow_solution_length


@pytest.mark.parametrize(
    ("rows", "columns", "num_boxes", "num_levels"), [(6, 6, 1, 60), (6, 5, 2, 25), (3, 9, 1, 10), (8, 8, 2, 3)]
)
def test_the_length_of_every_solution_is_exact(rows: int, columns: int, num_boxes: int, num_levels: int) -> None:
    env = Sokoban(rows=rows, columns=columns, num_boxes=num_boxes, floor_share=0.8)
    for seed in range(num_levels):
        grid = env.reset(seed, split=("train", "eval")[seed % 2])
        assert slow_solution_length(grid) == env.level.num_moves


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(5, 9), st.integers(5, 9), st.sampled_from(["train", "eval"]))
def test_levels_keep_every_setting(seed: int, rows: int, columns: int, split: str) -> None:
    params = SokobanParams(rows=rows, columns=columns, min_moves=3, max_moves=6, floor_share=0.8)
    level, distances = draw_level(params, seed, split)
    room = level.room
    assert 3 <= level.num_moves <= 6
    assert distances.distance(level.player, level.boxes) == level.num_moves
    assert room.floor.bit_count() == params.num_floor_cells
    assert _is_connected_and_inside(room)
    assert level.boxes.bit_count() == room.targets.bit_count() == 1
    assert not level.boxes & room.targets
    assert room.targets & room.floor == room.targets
    assert (level.boxes | 1 << level.player) & room.floor == level.boxes | 1 << level.player
    assert not level.boxes >> level.player & 1
    assert split_of(room, params.eval_share) == split


def _is_connected_and_inside(room: Room) -> bool:
    cells = {divmod(cell, room.columns) for cell in range(room.rows * room.columns) if room.floor >> cell & 1}
    if not all(0 < row < room.rows - 1 and 0 < column < room.columns - 1 for row, column in cells):
        return False
    todo = [next(iter(cells))]
    seen = set(todo)
    while todo:
        row, column = todo.pop()
        near = {(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)} & cells - seen
        seen |= near
        todo += near
    return seen == cells


def test_train_and_eval_never_share_walls_and_targets() -> None:
    params = SokobanParams()
    train = {draw_level(params, seed, "train")[0].room for seed in range(1500)}
    evaluation = {draw_level(params, seed, "eval")[0].room for seed in range(500)}
    assert len(train) > 1000
    assert len(evaluation) > 300
    assert not train & evaluation


def test_eval_share_is_the_share_of_rooms() -> None:
    rooms = [Room(6, 6, floor, 1 << target) for floor in range(0, 2**20, 2**10) for target in range(7, 11)]
    for share in (0.1, 0.5):
        num_eval = sum(split_of(room, share) == "eval" for room in rooms)
        assert num_eval / len(rooms) == pytest.approx(share, abs=0.02)


def test_all_lengths_that_are_asked_for_are_drawn() -> None:
    params = SokobanParams(rows=7, columns=7, min_moves=2, max_moves=9)
    lengths = Counter(draw_level(params, seed, "train")[0].num_moves for seed in range(600))
    assert set(lengths) == set(range(2, 10))
    assert min(lengths.values()) > 25


def test_the_least_length_is_reached_in_large_rooms_too() -> None:
    params = SokobanParams(rows=8, columns=8, num_boxes=3, floor_share=1.0, min_moves=24)
    assert draw_level(params, 1, "train")[0].num_moves >= 24


def test_no_box_starts_on_a_target() -> None:
    params = SokobanParams(rows=7, columns=7, num_boxes=2, max_moves=4)
    for seed in range(60):
        level, _ = draw_level(params, seed, "train")
        assert not level.boxes & level.room.targets


def test_floor_share_is_the_share_of_floor() -> None:
    for share, num_cells in ((0.4, 14), (1.0, 36)):
        params = SokobanParams(rows=8, columns=8, floor_share=share)
        assert draw_level(params, 0, "train")[0].room.floor.bit_count() == num_cells


def test_impossible_settings_are_a_task_error_that_names_them() -> None:
    with pytest.raises(TaskError, match=r"sokoban: none of 2000 .*rows=4.*min_moves=500.*Loosen"):
        draw_level(SokobanParams(rows=4, columns=5, min_moves=500), 0, "train")


def test_a_search_that_grows_too_large_stops_and_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    room = draw_level(SokobanParams(rows=8, columns=8), 0, "train")[0].room
    whole, cut = Distances(room), Distances(room)
    while not whole.is_complete:
        whole.deepen()
    boxes, players = next(iter(whole.layers[-2].items()))
    player = players.bit_length() - 1
    monkeypatch.setattr("turnwise.envs.sokoban.level.MAX_POSITIONS", 5)
    assert cut.distance(player, boxes) is None
    assert not cut.is_dead(player, boxes)
    assert whole.distance(player, boxes) == len(whole.layers) - 2


def test_levels_are_pinned() -> None:
    """A change here changes every published number: seeds must keep their meaning between releases."""
    params = SokobanParams()
    drawn = [draw_level(params, seed, split)[0] for split, seed in (("train", 0), ("train", 1), ("eval", 0))]
    assert drawn == [
        Level(Room(6, 6, floor=475121408, targets=4194304), player=26, boxes=65536, num_moves=6),
        Level(Room(6, 6, floor=508158080, targets=32768), player=15, boxes=16384, num_moves=9),
        Level(Room(6, 6, floor=104391552, targets=524288), player=7, boxes=16384, num_moves=5),
    ]

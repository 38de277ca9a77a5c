"""Layouts: solvable, filtered as asked, apart by split, and the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.frozen_lake.layout import (
    LakeParams,
    Layout,
    blind_move,
    distance,
    draw_layout,
    is_blind_solvable,
    neighbours,
    reachable_cells,
    split_of,
)
from turnwise.errors import TaskError

from .lakes import HARD_4X4


def slow_distances(layout: Layout) -> dict[int, int]:
    """Moves to the goal from every cell that reaches it, by coordinates and a queue."""
    goal = divmod(layout.goal, layout.size)
    found = {goal: 0}
    queue = deque([goal])
    while queue:
        row, column = queue.popleft()
        for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            is_inside = 0 <= near[0] < layout.size and 0 <= near[1] < layout.size
            if is_inside and near not in found and not layout.has_hole(near[0] * layout.size + near[1]):
                found[near] = found[row, column] + 1
                queue.append(near)
    return {row * layout.size + column: moves for (row, column), moves in found.items()}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    size = draw(st.integers(2, 7))
    start, goal = draw(st.lists(st.integers(0, size * size - 1), min_size=2, max_size=2, unique=True))
    holes = draw(st.integers(0, 2 ** (size * size) - 1)) & ~(1 << start | 1 << goal)
    return Layout(size, start, goal, holes)


@given(layouts())
def test_flood_fill_agrees_with_a_plain_search(layout: Layout) -> None:
    expected = slow_distances(layout)
    assert distance(layout) == expected.get(layout.start)
    assert reachable_cells(layout) == sum(1 << cell for cell in expected)


@given(layouts())
def test_blind_solvable_means_that_both_straight_walks_arrive(layout: Layout) -> None:
    def columns_first(cell: int) -> int:
        return blind_move(layout, cell)

    def rows_first(cell: int) -> int:
        (_, column), (_, goal_column) = divmod(cell, layout.size), divmod(layout.goal, layout.size)
        return columns_first(cell) if column == goal_column else (2 if column < goal_column else 0)

    def arrives(rule: Callable[[int], int]) -> bool:
        cell = layout.start
        while cell != layout.goal and not layout.has_hole(cell):
            cell = neighbours(layout.size)[cell][rule(cell)]
        return cell == layout.goal

    assert is_blind_solvable(layout) == (arrives(columns_first) and arrives(rows_first))


def test_train_and_eval_never_share_goal_and_holes() -> None:
    params = LakeParams(**HARD_4X4, random_start_rate=0.7)  # type: ignore[arg-type]
    train = {draw_layout(params, seed, "train")[2:] for seed in range(4000)}
    evaluation = {draw_layout(params, seed, "eval")[2:] for seed in range(1500)}
    assert len(train) > 1500
    assert len(evaluation) > 400
    assert not train & evaluation


def test_eval_share_is_the_share_of_layouts() -> None:
    candidates = [Layout(4, 0, goal, holes) for goal in range(1, 16) for holes in range(0, 65536, 64)]
    for share in (0.1, 0.5):
        num_eval = sum(split_of(layout, share) == "eval" for layout in candidates)
        assert num_eval / len(candidates) == pytest.approx(share, abs=0.02)


def test_start_does_not_decide_the_split() -> None:
    for holes in range(0, 65536, 1024):
        assert len({split_of(Layout(4, start, 15, holes), 0.2) for start in range(15)}) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 9), st.sampled_from(["train", "eval"]))
def test_layouts_keep_every_filter(seed: int, size: int, split: str) -> None:
    params = LakeParams(size=size, hole_rate=0.3, max_holes=size * size // 3, min_distance=2, max_distance=2 * size)
    layout = draw_layout(params, seed, split)
    num_moves = slow_distances(layout)[layout.start]
    assert 2 <= num_moves <= 2 * size
    assert layout.holes.bit_count() <= size * size // 3
    assert layout.holes < 1 << size * size
    assert not layout.has_hole(layout.start)
    assert not layout.has_hole(layout.goal)
    assert split_of(layout, params.eval_share) == split


def test_size_26_can_be_drawn() -> None:
    layout = draw_layout(LakeParams(size=26, min_distance=20), 3, "train")
    assert layout.start < 676
    assert slow_distances(layout)[layout.start] >= 20


def test_hole_rate_is_the_share_of_holes() -> None:
    """Solvability favours fewer holes, so at a low rate hardly a layout is refused."""
    params = LakeParams(size=10, hole_rate=0.05)
    num_holes = sum(draw_layout(params, seed, "train").holes.bit_count() for seed in range(300))
    assert num_holes / (300 * 98) == pytest.approx(0.05, abs=0.006)


def test_blind_solvable_keep_drops_the_asked_share() -> None:
    def share(keep: float) -> float:
        params = LakeParams(**{**HARD_4X4, "blind_solvable_keep": keep})  # type: ignore[arg-type]
        return sum(is_blind_solvable(draw_layout(params, seed, "train")) for seed in range(2000)) / 2000

    everything, half = share(1.0), share(0.5)
    assert share(0.0) == 0
    # Of every `everything` blind-solvable layouts half are gone, and all the others are still there.
    assert half == pytest.approx(0.5 * everything / (1 - 0.5 * everything), abs=0.04)
    assert everything - half > 0.1


def test_random_starts_reach_every_cell_and_only_in_training() -> None:
    at_home = LakeParams(size=4)
    anywhere = LakeParams(size=4, random_start_rate=1.0)
    sometimes = LakeParams(size=4, random_start_rate=0.7)
    starts = set()
    num_moved = 0
    for seed in range(1000):
        layout = draw_layout(anywhere, seed, "train")
        assert layout.start in slow_distances(layout)
        assert layout.start != layout.goal
        starts.add(layout.start)
        home = draw_layout(at_home, seed, "train")
        assert home[2:] == layout[2:]
        num_moved += draw_layout(sometimes, seed, "train").start != home.start
        assert draw_layout(anywhere, seed, "eval") == draw_layout(at_home, seed, "eval")
    assert starts == set(range(16))
    # One in about twelve random starts is the layout's own.
    assert 0.57 < num_moved / 1000 < 0.71


def test_impossible_filters_are_a_task_error_that_names_them() -> None:
    with pytest.raises(TaskError, match=r"size=2.*min_distance=9.*Loosen"):
        draw_layout(LakeParams(size=2, min_distance=9), 0, "train")


SCRIPT = """
from turnwise.envs.base import make_env
lake = make_env("frozen_lake", is_slippery=True, random_start_rate=0.5)
bandit = make_env("bandit")
for seed in range(30):
    print(lake.reset(seed, split=("train", "eval")[seed % 2], dynamics_seed=seed + 7))
    for action in ("Left", "Down", "Right", "Up"):
        result = lake.step(action)
        print(result)
        if result[2]:
            break
    print(bandit.reset(seed), bandit.step("Dragon"))
"""


def test_episodes_are_equal_in_every_process() -> None:
    def run(hash_seed: str) -> str:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
        answer = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
        return answer.stdout

    first = run("1")
    assert first == run("2")
    assert len(first.splitlines()) > 150


def test_layouts_are_pinned() -> None:
    """A change here changes every published number: seeds must keep their meaning between releases."""
    params = LakeParams(**HARD_4X4)  # type: ignore[arg-type]
    drawn = [draw_layout(params, seed, split) for split in ("train", "eval") for seed in (0, 1)]
    assert drawn == [
        Layout(size=4, start=5, goal=14, holes=34820),
        Layout(size=4, start=11, goal=4, holes=1092),
        Layout(size=4, start=9, goal=11, holes=20644),
        Layout(size=4, start=2, goal=7, holes=28721),
    ]

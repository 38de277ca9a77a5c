"""Random solvable layouts of a frozen lake, and the two splits they fall into.

In come settings, a seed and a split; out comes a layout, the same one in every process. It refuses to know about moves
taken, texts and rewards. Cells are numbered row by row from the top left; sets of cells are bits of one integer, which
makes a flood fill a handful of shifts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from turnwise.envs.frozen_lake.settings import LakeParams
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

SPLITS = ("train", "eval")
MAX_DRAWS = 20_000


class Layout(NamedTuple):
    """Where everything is. `holes` is a set of cells as bits."""

    size: int
    start: int
    goal: int
    holes: int

    def has_hole(self, cell: int) -> bool:
        return bool(self.holes >> cell & 1)


def draw_layout(params: LakeParams, seed: int, split: str) -> Layout:
    """The layout of a seed: draws until one passes every filter and falls into the split."""
    rng = make_rng("layout", seed)
    for _ in range(MAX_DRAWS):
        layout = _draw_candidate(params.size, params.hole_rate, rng.random)
        if _is_wanted(layout, params, rng.random) and split_of(layout, params.eval_share) == split:
            return _choose_start(layout, params, rng) if split == "train" else layout
    raise TaskError(
        f"frozen_lake: none of {MAX_DRAWS} random layouts fits the settings size={params.size}, "
        f"hole_rate={params.hole_rate}, max_holes={params.max_holes}, min_distance={params.min_distance}, "
        f"max_distance={params.max_distance}, blind_solvable_keep={params.blind_solvable_keep}, "
        f"eval_share={params.eval_share} (split {split}, seed {seed}). Loosen one of them."
    )


def split_of(layout: Layout, eval_share: float) -> str:
    """Decided by goal and holes alone: an episode that starts elsewhere on the same ice is the same layout."""
    key = f"{layout.size}/{layout.goal}/{layout.holes:x}".encode()
    return "eval" if crc32(key) % 10_000 < eval_share * 10_000 else "train"


def distance(layout: Layout) -> int | None:
    """The fewest moves from start to goal; None where there is no way."""
    open_cells = _borders(layout.size)[2] & ~layout.holes
    target = 1 << layout.start
    reached = frontier = 1 << layout.goal
    num_moves = 0
    while frontier:
        if frontier & target:
            return num_moves
        frontier = _spread(frontier, layout.size) & open_cells & ~reached
        reached |= frontier
        num_moves += 1
    return None


def reachable_cells(layout: Layout) -> int:
    """All cells from which the goal can be reached, the goal included, as bits."""
    open_cells = _borders(layout.size)[2] & ~layout.holes
    reached = frontier = 1 << layout.goal
    while frontier:
        frontier = _spread(frontier, layout.size) & open_cells & ~reached
        reached |= frontier
    return reached


def is_blind_solvable(layout: Layout) -> bool:
    """Whether going straight to the goal meets no hole, both with columns first and with rows first."""
    there = _straight_path(layout.size, layout.start, layout.goal)
    # Rows first is the way back of columns first with start and goal exchanged.
    back = _straight_path(layout.size, layout.goal, layout.start)
    return not (there | back) & layout.holes


def _draw_candidate(size: int, hole_rate: float, draw: Callable[[], float]) -> Layout:
    num_cells = size * size
    start = int(draw() * num_cells)
    goal = (start + 1 + int(draw() * (num_cells - 1))) % num_cells
    holes = 0
    for cell in range(num_cells):
        if draw() < hole_rate:
            holes |= 1 << cell
    return Layout(size, start, goal, holes & ~(1 << start | 1 << goal))


def _is_wanted(layout: Layout, params: LakeParams, draw: Callable[[], float]) -> bool:
    if params.max_holes is not None and layout.holes.bit_count() > params.max_holes:
        return False
    num_moves = distance(layout)
    if num_moves is None or num_moves < params.min_distance:
        return False
    if params.max_distance is not None and num_moves > params.max_distance:
        return False
    keep = params.blind_solvable_keep
    return keep == 1 or not is_blind_solvable(layout) or draw() < keep


def _choose_start(layout: Layout, params: LakeParams, rng: random.Random) -> Layout:
    if params.random_start_rate == 0 or rng.random() >= params.random_start_rate:
        return layout
    bits = reachable_cells(layout) & ~(1 << layout.goal)
    cells = [cell for cell in range(layout.size**2) if bits >> cell & 1]
    return layout._replace(start=cells[int(rng.random() * len(cells))])


@lru_cache(maxsize=32)
def _borders(size: int) -> tuple[int, int, int]:
    """All cells without the first column, without the last column, and all cells."""
    everything = (1 << size * size) - 1
    first_column = sum(1 << row * size for row in range(size))
    return everything & ~first_column, everything & ~(first_column << (size - 1)), everything


def _spread(cells: int, size: int) -> int:
    """All neighbours of a set of cells; bits beyond the last row are left to the caller's mask."""
    not_first, not_last, _ = _borders(size)
    return (cells & not_first) >> 1 | (cells & not_last) << 1 | cells >> size | cells << size


def _straight_path(size: int, start: int, goal: int) -> int:
    """The cells of the walk along the start's column to the goal's row, and then along that row."""
    (start_row, start_column), (goal_row, goal_column) = divmod(start, size), divmod(goal, size)
    top, bottom = sorted((start_row, goal_row))
    left, right = sorted((start_column, goal_column))
    path = ((1 << right - left + 1) - 1) << goal_row * size + left
    for row in range(top, bottom + 1):
        path |= 1 << row * size + start_column
    return path

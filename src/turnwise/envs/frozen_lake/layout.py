"""Settings, random solvable layouts and solver of FrozenLake. A layout depends on settings, seed and split alone.

Cells are numbered row by row from the top left; sets of cells are bits of one integer, which makes a flood fill a few
shifts.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from turnwise.config.settings import Settings
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

Symbol = Annotated[str, Field(min_length=1, max_length=1, pattern=r"^\S$")]


class LakeSymbols(Settings):
    """One visible character each, all different."""

    player: Symbol = "P"
    """The player on ice."""
    ice: Symbol = "_"
    """A cell that can be walked on."""
    hole: Symbol = "O"
    """A cell that ends the episode without success."""
    goal: Symbol = "G"
    """The cell to reach."""
    fallen: Symbol = "X"
    """The player in a hole."""
    arrived: Symbol = "√"
    """The player on the goal."""

    @model_validator(mode="after")
    def _differ(self) -> LakeSymbols:
        symbols = list(self.model_dump().values())
        if len(set(symbols)) < len(symbols):
            raise ValueError(f"the symbols {' '.join(symbols)} are not all different.")
        return self


class LakeParams(Settings):
    """The settings of FrozenLake."""

    size: int = Field(default=4, ge=2, le=26)
    """Rows and columns."""
    hole_rate: float = Field(default=0.2, ge=0, lt=1)
    """The chance of every cell but start and goal to be a hole."""
    max_holes: int | None = Field(default=None, ge=0)
    """Layouts with more holes are not used; null sets no limit."""
    min_distance: int = Field(default=1, ge=1)
    """The fewest moves from start to goal, around the holes."""
    max_distance: int | None = Field(default=None, ge=1)
    """The most moves from start to goal, around the holes; null sets no limit."""
    is_slippery: bool = False
    """Whether a move may go sideways, at the rate of `slip_rate`."""
    slip_rate: float = Field(default=2 / 3, ge=0, le=1)
    """On slippery ice, the chance of going sideways instead, evenly to either side."""
    view: Literal["grid", "objects"] = "grid"
    """A map of one character per cell, or one word per object: its symbol and the name of its cell."""
    symbols: LakeSymbols = LakeSymbols()
    """How the map is drawn."""
    blind_solvable_keep: float = Field(default=1.0, ge=0, le=1)
    """The share kept of the layouts that walking straight to the goal solves both ways, rows or columns first."""
    random_start_rate: float = Field(default=0.0, ge=0, le=1)
    """The share of training episodes that start on any cell from which the goal can be reached."""
    eval_share: float = Field(default=0.2, gt=0, lt=1)
    """The share of all layouts that is held out of training."""

    @model_validator(mode="after")
    def _distances_agree(self) -> LakeParams:
        if self.max_distance is not None and self.max_distance < self.min_distance:
            raise ValueError(
                f"max_distance {self.max_distance} is below min_distance {self.min_distance}; no layout can have both."
            )
        return self


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


ACTIONS = ("Left", "Down", "Right", "Up")
"""In circular order, so that the two sides of an action are its neighbours in this list."""

LEFT, DOWN, RIGHT, UP = range(4)
# For ties. The opposite of the first choice comes last: of all orders this kind walks back and forth the least.
_MYOPIC_ORDER = (RIGHT, DOWN, UP, LEFT)
_TOLERANCE = 1e-11
_SWEEPS_PER_LOOK = 16


@lru_cache(maxsize=32)
def neighbours(size: int) -> tuple[tuple[int, int, int, int], ...]:
    """Where each action leads from each cell; into a wall leads nowhere."""
    table = []
    for cell in range(size * size):
        row, column = divmod(cell, size)
        table.append(
            (
                cell - (column > 0),
                cell + size * (row < size - 1),
                cell + (column < size - 1),
                cell - size * (row > 0),
            )
        )
    return tuple(table)


def best_moves(layout: Layout, slip_rate: float) -> tuple[int, ...]:
    """An optimal move for every cell; of no meaning on holes, the goal, and where the goal is out of reach."""
    if slip_rate == 0:
        return _shortest_moves(layout.size, layout.goal, layout.holes)
    return _safest_moves(layout.size, layout.goal, layout.holes, slip_rate)


def blind_move(layout: Layout, cell: int) -> int:
    """Straight to the goal's row, then along it, holes or not."""
    (row, column), (goal_row, goal_column) = divmod(cell, layout.size), divmod(layout.goal, layout.size)
    if row != goal_row:
        return DOWN if row < goal_row else UP
    return RIGHT if column < goal_column else LEFT


def myopic_move(layout: Layout, cell: int) -> int:
    """To the neighbour nearest to the goal as the crow flies that is no hole; no looking ahead, no memory."""
    targets = neighbours(layout.size)[cell]
    moves = [move for move in _MYOPIC_ORDER if targets[move] != cell and not layout.has_hole(targets[move])]
    return min(moves, key=lambda move: _manhattan(layout, targets[move]), default=LEFT)


def _manhattan(layout: Layout, cell: int) -> int:
    (row, column), (goal_row, goal_column) = divmod(cell, layout.size), divmod(layout.goal, layout.size)
    return abs(row - goal_row) + abs(column - goal_column)


@lru_cache(maxsize=1024)
def _shortest_moves(size: int, goal: int, holes: int) -> tuple[int, ...]:
    """Breadth first from the goal: the move by which a cell is found is the first of a shortest way back."""
    table = neighbours(size)
    moves = [LEFT] * (size * size)
    seen = {goal}
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for move, before in enumerate(table[cell]):
            if before not in seen and not holes >> before & 1:
                seen.add(before)
                queue.append(before)
                moves[before] = (move + 2) % 4
    return tuple(moves)


@lru_cache(maxsize=256)
def _safest_moves(size: int, goal: int, holes: int, slip_rate: float) -> tuple[int, ...]:
    """The moves with the highest chance to arrive ever, and among those the quickest.

    The chance alone does not decide: where nothing can go wrong every move has chance 1, also one that never arrives.
    """
    allowed = np.ones((size * size, 4), dtype=bool)
    chances = _iterate_values(size, goal, holes, slip_rate=slip_rate, discount=1.0, allowed=allowed)
    allowed = chances >= chances.max(axis=1, keepdims=True) - 1e-9
    hasty = _iterate_values(size, goal, holes, slip_rate=slip_rate, discount=0.99, allowed=allowed)
    return tuple(int(move) for move in hasty.argmax(axis=1))


def _iterate_values(
    size: int, goal: int, holes: int, *, slip_rate: float, discount: float, allowed: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Values of all (cell, action) pairs for a reward of 1 at the goal, from below; -1 where not allowed."""
    targets = np.array(neighbours(size))
    # Straight ahead and to either side, for each action.
    outcomes = np.stack([targets, np.roll(targets, 1, axis=1), np.roll(targets, -1, axis=1)], axis=2)
    chances = discount * np.array([1 - slip_rate, slip_rate / 2, slip_rate / 2])
    is_open = np.array([cell != goal and not holes >> cell & 1 for cell in range(size * size)])
    values = np.zeros(size * size)
    values[goal] = 1.0
    while True:
        before = values
        # Looking at the change costs as much as a sweep, so it is not done after each one.
        for _ in range(_SWEEPS_PER_LOOK):
            action_values = np.where(allowed, values[outcomes] @ chances, -1.0)
            values = np.where(is_open, action_values.max(axis=1), values)
        # Values only ever grow towards a bound, so this ends.
        if (values - before).max() < _TOLERANCE:
            return np.where(allowed, values[outcomes] @ chances, -1.0)

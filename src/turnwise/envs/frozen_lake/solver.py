"""What to do on a given layout: the best moves, and the simple rules a policy is compared with.

In come a layout and a cell; out come moves, as indices into `ACTIONS`. It refuses to know about episodes and texts.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnwise.envs.frozen_lake.layout import Layout

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

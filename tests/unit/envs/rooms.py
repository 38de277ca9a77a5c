"""Rooms of Sokoban drawn by hand, and a slow independent solver, that several tests share."""

from __future__ import annotations

from collections import deque

from turnwise.envs.sokoban import Sokoban
from turnwise.envs.sokoban.level import Level, Room

_OFFSETS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
Cell = tuple[int, int]


def read_level(drawing: str) -> Level:
    """A level from its grid, in the default symbols."""
    lines = drawing.split()
    cells = [(index, symbol) for index, symbol in enumerate("".join(lines))]

    def bits(symbols: str) -> int:
        return sum(1 << index for index, symbol in cells if symbol in symbols)

    room = Room(len(lines), len(lines[0]), bits("_OX√PS"), bits("O√S"))
    return Level(room, bits("PS").bit_length() - 1, bits("X√"), 0)


def room_at(drawing: str, **params: object) -> Sokoban:
    """An environment with a level of our choice, by way of the public snapshots."""
    level = read_level(drawing)
    env = Sokoban(rows=level.room.rows, columns=level.room.columns, **params)
    env.restore((level, level.player, level.boxes, False, "playing"))
    return env


def slow_solution_length(grid: str) -> int | None:
    """The fewest moves from a grid in default symbols, by coordinates, sets and forward search."""
    lines = grid.split("\n")
    cells = {(row, column): symbol for row, line in enumerate(lines) for column, symbol in enumerate(line)}
    walls = {cell for cell, symbol in cells.items() if symbol == "#"}
    targets = {cell for cell, symbol in cells.items() if symbol in "O√S"}
    boxes = frozenset(cell for cell, symbol in cells.items() if symbol in "X√")
    (player,) = (cell for cell, symbol in cells.items() if symbol in "PS")
    seen = {(player, boxes)}
    queue = deque([(player, boxes, 0)])
    while queue:
        player, boxes, num_moves = queue.popleft()
        if boxes == targets:
            return num_moves
        for offset in _OFFSETS.values():
            state = _go(player, boxes, offset, walls)
            if state is not None and state not in seen:
                seen.add(state)
                queue.append((*state, num_moves + 1))
    return None


def _go(player: Cell, boxes: frozenset[Cell], offset: Cell, walls: set[Cell]) -> tuple[Cell, frozenset[Cell]] | None:
    ahead = player[0] + offset[0], player[1] + offset[1]
    beyond = ahead[0] + offset[0], ahead[1] + offset[1]
    if ahead in walls:
        return None
    if ahead not in boxes:
        return ahead, boxes
    if beyond in walls or beyond in boxes:
        return None
    return ahead, boxes - {ahead} | {beyond}

"""How far every state of a room is from solved, found by playing backwards.

In come a room and its targets; out come exact distances in moves, best moves, and proof that a state is dead. It
refuses to know how levels are drawn, told and paid.

Backwards a push is a pull, so the search starts from all solved states and pulls boxes away. Cells are numbered row by
row, and sets of cells are bits of one integer: all cells of the player that share the same boxes are one number, and a
step of the search is a handful of shifts. The outer ring is wall, so a shift never wraps around.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

ACTIONS = ("Up", "Down", "Left", "Right")
MAX_POSITIONS = 100_000
"""When a search has stored this many sets of player cells it goes no deeper."""


class Room(NamedTuple):
    """What does not move. `floor` holds every cell that is no wall, the targets included."""

    rows: int
    columns: int
    floor: int
    targets: int


def action_offsets(columns: int) -> tuple[int, int, int, int]:
    """What each action adds to the number of a cell."""
    return -columns, columns, -1, 1


def cells_of(bits: int) -> Iterator[int]:
    """The numbers of the cells in a set, from the lowest."""
    while bits:
        lowest = bits & -bits
        bits ^= lowest
        yield lowest.bit_length() - 1


class Distances:
    """The states of a room by their distance, searched only as deep as somebody asks.

    `layers[d]` holds the states that are d moves from solved: for every set of boxes, the cells of the player.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._offsets = action_offsets(room.columns)
        players = room.floor & ~room.targets
        self.layers: list[dict[int, int]] = [{room.targets: players}]
        self.num_positions = 1
        self._reached = {room.targets: players}

    @property
    def is_complete(self) -> bool:
        """Whether every state that can be solved is in a layer."""
        return not self.layers[-1]

    def deepen(self) -> None:
        """Find the states one move further away; when there are none, the last layer is empty."""
        found: dict[int, int] = {}
        floor, columns, reached = self._room.floor, self._room.columns, self._reached
        for boxes, players in self.layers[-1].items():
            free = floor & ~boxes
            walked = (players << 1 | players >> 1 | players << columns | players >> columns) & free & ~reached[boxes]
            if walked:
                found[boxes] = found.get(boxes, 0) | walked
                reached[boxes] |= walked
            if players & (boxes << 1 | boxes >> 1 | boxes << columns | boxes >> columns):
                self._pull(boxes, players, free, found)
        self.layers.append(found)
        self.num_positions += len(found)

    def _pull(self, boxes: int, players: int, free: int, found: dict[int, int]) -> None:
        """Undo every push that could have led here: the player steps back and the box before them follows."""
        for step in (1, self._room.columns):
            pullers = players & boxes >> step & free << step
            while pullers:
                cell = pullers & -pullers
                pullers ^= cell
                self._add(boxes ^ cell << step | cell, cell >> step, found)
            pullers = players & boxes << step & free >> step
            while pullers:
                cell = pullers & -pullers
                pullers ^= cell
                self._add(boxes ^ cell >> step | cell, cell << step, found)

    def _add(self, boxes: int, player: int, found: dict[int, int]) -> None:
        known = self._reached.get(boxes, 0)
        if not known & player:
            self._reached[boxes] = known | player
            found[boxes] = found.get(boxes, 0) | player

    def distance(self, player: int, boxes: int) -> int | None:
        """The fewest moves to solve the state; None where there is no way, or none was found within the limit."""
        cell = 1 << player
        while not self._reached.get(boxes, 0) & cell:
            if self.is_complete or self.num_positions >= MAX_POSITIONS:
                return None
            self.deepen()
        return next(depth for depth, layer in enumerate(self.layers) if layer.get(boxes, 0) & cell)

    def is_dead(self, player: int, boxes: int) -> bool:
        """Whether it is proven that the state cannot be solved any more."""
        return self.distance(player, boxes) is None and self.is_complete

    def best_move(self, player: int, boxes: int) -> int:
        """The first move of a shortest solution, as an index into `ACTIONS`; else the first move that goes anywhere."""
        depth = self.distance(player, boxes)
        possible = [(move, after) for move in range(4) if (after := self.after(player, boxes, move)) != (player, boxes)]
        if depth:
            nearer = self.layers[depth - 1]
            return next(move for move, (cell, pushed) in possible if nearer.get(pushed, 0) >> cell & 1)
        return possible[0][0] if possible else 0

    def after(self, player: int, boxes: int, move: int) -> tuple[int, int]:
        """The player's cell and the boxes after a move; unchanged where the way is blocked."""
        offset, floor = self._offsets[move], self._room.floor
        cell = player + offset
        if not floor >> cell & 1:
            return player, boxes
        if not boxes >> cell & 1:
            return cell, boxes
        beyond = cell + offset
        if not (floor & ~boxes) >> beyond & 1:
            return player, boxes
        return cell, boxes ^ (1 << cell | 1 << beyond)

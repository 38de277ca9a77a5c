"""Random solvable levels of Sokoban, and the two splits they fall into.

In come settings, a seed and a split; out comes a level with its room's distances, the same in every process. A level is
solvable by construction: it is a state that pulling boxes away from their targets can reach. It refuses to know about
moves taken, texts and rewards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple
from zlib import crc32

from pydantic import Field, model_validator

from turnwise.config.settings import Settings
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

Symbol = Annotated[str, Field(min_length=1, max_length=1, pattern=r"^\S$")]


class SokobanSymbols(Settings):
    """One visible character each, all different."""

    wall: Symbol = "#"
    """A cell that nothing can enter."""
    floor: Symbol = "_"
    """An empty cell."""
    target: Symbol = "O"
    """A cell where a box belongs."""
    box: Symbol = "X"
    """A box beside the targets."""
    stored: Symbol = "√"
    """A box on a target."""
    player: Symbol = "P"
    """The player on the floor."""
    player_on_target: Symbol = "S"
    """The player on a target."""

    @model_validator(mode="after")
    def _differ(self) -> SokobanSymbols:
        symbols = list(self.model_dump().values())
        if len(set(symbols)) < len(symbols):
            raise ValueError(f"the symbols {' '.join(symbols)} are not all different.")
        return self


class SokobanParams(Settings):
    """The settings of Sokoban."""

    rows: int = Field(default=6, ge=3, le=26)
    """Rows, the walls around the room included."""
    columns: int = Field(default=6, ge=3, le=26)
    """Columns, the walls around the room included."""
    num_boxes: int = Field(default=1, ge=1)
    """Boxes, and as many targets; at the start no box is on a target."""
    floor_share: float = Field(default=0.7, gt=0, le=1)
    """How much of the room inside the outer walls is floor; the rest is walls."""
    min_moves: int = Field(default=1, ge=1)
    """The fewest moves of a shortest solution."""
    max_moves: int | None = Field(default=None, ge=1)
    """The most moves of a shortest solution; null sets no limit."""
    view: Literal["grid", "objects"] = "grid"
    """A map of one character per cell, or one word per object: its symbol and the name of its cell."""
    symbols: SokobanSymbols = SokobanSymbols()
    """How the map is drawn."""
    action_reward: float = -0.1
    """Paid for every action that is understood, those without effect included."""
    box_on_reward: float = 1.0
    """Paid when a box comes onto a target."""
    box_off_reward: float = -1.0
    """Paid when a box leaves its target."""
    solved_reward: float = 10.0
    """Paid when all boxes are on targets, beside the reward for the last box."""
    eval_share: float = Field(default=0.2, gt=0, lt=1)
    """The share of all rooms that is held out of training."""

    @property
    def num_floor_cells(self) -> int:
        return round(self.floor_share * (self.rows - 2) * (self.columns - 2))

    @model_validator(mode="after")
    def _agree(self) -> SokobanParams:
        if self.max_moves is not None and self.max_moves < self.min_moves:
            raise ValueError(f"max_moves {self.max_moves} is below min_moves {self.min_moves}; no level can have both.")
        num_needed = 2 * self.num_boxes + 1
        if self.num_floor_cells < num_needed:
            raise ValueError(
                f"rows {self.rows}, columns {self.columns} and floor_share {self.floor_share:g} leave "
                f"{self.num_floor_cells} cells of floor; {self.num_boxes} boxes, their targets and the player need "
                f"{num_needed}. Make the room larger or num_boxes smaller."
            )
        return self


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


SPLITS = ("train", "eval")
MAX_DRAWS = 2_000
_MAX_SEARCHED = 1_000_000
"""Over all draws for one level: some ten seconds of looking for what may not be there."""
_ENOUGH_POSITIONS = 1_500
"""With so many sets of player cells, and levels of the least length among them, a search goes no deeper: more would be
harder levels in large rooms, at the price of slower resets."""
_TURN_RATE = 0.35
"""How often the digger changes direction: rarer makes long corridors, oftener makes blots."""


class Level(NamedTuple):
    """A room and what stands in it at the start; `num_moves` is the length of a shortest solution."""

    room: Room
    player: int
    boxes: int
    num_moves: int


def draw_level(params: SokobanParams, seed: int, split: str) -> tuple[Level, Distances]:
    """The level of a seed, with what the search for it found out about its room."""
    rng = make_rng("level", seed)
    num_draws = num_searched = 0
    while num_draws < MAX_DRAWS and num_searched < _MAX_SEARCHED:
        num_draws += 1
        room = _draw_room(params, rng)
        if split_of(room, params.eval_share) != split:
            continue
        distances = Distances(room)
        level = _draw_start(params, room, distances, rng)
        if level is not None:
            return level, distances
        num_searched += distances.num_positions
    raise TaskError(
        f"sokoban: none of {num_draws} random rooms fits the settings rows={params.rows}, columns={params.columns}, "
        f"num_boxes={params.num_boxes}, floor_share={params.floor_share:g}, min_moves={params.min_moves}, "
        f"max_moves={params.max_moves}, eval_share={params.eval_share:g} (split {split}, seed {seed}). "
        "Loosen one of them."
    )


def split_of(room: Room, eval_share: float) -> str:
    """Decided by walls and targets alone: the same room with other starts is in the same split."""
    key = f"{room.columns}/{room.floor:x}/{room.targets:x}".encode()
    return "eval" if crc32(key) % 10_000 < eval_share * 10_000 else "train"


def _draw_room(params: SokobanParams, rng: random.Random) -> Room:
    floor = _dig(params, rng)
    targets = sum(1 << cell for cell in rng.sample(list(cells_of(floor)), params.num_boxes))
    return Room(params.rows, params.columns, floor, targets)


def _dig(params: SokobanParams, rng: random.Random) -> int:
    """A connected floor: a random walk through solid rock that mostly goes on straight."""
    draw, columns, num_cells = rng.random, params.columns, params.num_floor_cells
    inside = _inside(params.rows, columns)
    offsets = action_offsets(columns)
    cell = (1 + int(draw() * (params.rows - 2))) * columns + 1 + int(draw() * (columns - 2))
    offset = offsets[int(draw() * 4)]
    floor = 1 << cell
    num_dug = 1
    while num_dug < num_cells:
        chance = draw()
        if chance < _TURN_RATE or not inside >> cell + offset & 1:
            offset = offsets[int(draw() * 4)]
        if inside >> cell + offset & 1:
            cell += offset
            if not floor >> cell & 1:
                floor |= 1 << cell
                num_dug += 1
    return floor


@lru_cache(maxsize=32)
def _inside(rows: int, columns: int) -> int:
    """All cells within the outer ring."""
    row = (1 << columns - 2) - 1
    return sum(row << index * columns + 1 for index in range(1, rows - 1))


def _draw_start(params: SokobanParams, room: Room, distances: Distances, rng: random.Random) -> Level | None:
    """A start for the room: every length of solution that it offers is as likely as any other."""
    _search(params, distances)
    starts = {}
    for depth in range(params.min_moves, len(distances.layers)):
        apart = {boxes: cells for boxes, cells in distances.layers[depth].items() if not boxes & room.targets}
        if apart:
            starts[depth] = apart
    if not starts:
        return None
    num_moves = list(starts)[int(rng.random() * len(starts))]
    states = [(player, boxes) for boxes, players in starts[num_moves].items() for player in cells_of(players)]
    player, boxes = states[int(rng.random() * len(states))]
    return Level(room, player, boxes, num_moves)


def _search(params: SokobanParams, distances: Distances) -> None:
    """As deep as the settings ask for, and further while it is cheap."""
    while not distances.is_complete:
        depth = len(distances.layers) - 1
        is_enough = depth >= params.min_moves and distances.num_positions >= _ENOUGH_POSITIONS
        if is_enough or depth == params.max_moves or distances.num_positions >= MAX_POSITIONS:
            break
        distances.deepen()

"""Random solvable levels of Sokoban, and the two splits they fall into.

In come settings, a seed and a split; out comes a level with its room's distances, the same in every process. A level is
solvable by construction: it is a state that pulling boxes away from their targets can reach. It refuses to know about
moves taken, texts and rewards.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from turnwise.envs.sokoban.settings import SokobanParams
from turnwise.envs.sokoban.solver import MAX_POSITIONS, Distances, Room, action_offsets, cells_of
from turnwise.errors import TaskError
from turnwise.infra.seeds import make_rng

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

"""Pushing boxes onto targets: settings, random solvable levels, their exact solutions, and the game itself."""

from __future__ import annotations

from typing import Any, ClassVar, cast
from weakref import WeakValueDictionary

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.sokoban.level import ACTIONS, SPLITS, Distances, Level, Room, SokobanParams, cells_of, draw_level
from turnwise.infra.seeds import random_seed

__all__ = ["Sokoban"]


_MOVES = {name: move for move, action in enumerate(ACTIONS) for name in (action, action.lower())}
_IN_PLAY: WeakValueDictionary[Room, Distances] = WeakValueDictionary()
"""Siblings share what is known about their room: a deep search is done once, and forgotten with the last of them."""


class Sokoban(BaseEnv):
    """A room of `rows` x `columns` cells, the outer ring of them wall; no time limit of its own."""

    name = "sokoban"
    rewards = "-0.1 an action, 1 a box on, -1 a box off, 10 solved"
    Params: ClassVar[type[Settings]] = SokobanParams
    has_oracle = True

    params: SokobanParams
    level: Level
    """What the episode began with."""
    player: int
    """Where the player is, counted row by row."""
    boxes: int
    """Where the boxes are, as bits."""
    is_dead: bool
    """Whether it is proven that the level cannot be solved any more."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        level, distances = draw_level(self.params, random_seed() if seed is None else seed, split)
        self._enter(level, distances, level.player, level.boxes)
        self._phase = "playing"
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        move = _MOVES.get(action)
        if move is None:
            move = _MOVES.get(action.strip().lower())
        if move is None:
            return self.render(), 0.0, False, self._info(is_valid=False, is_effective=False)
        before = self.player, self.boxes
        self.player, self.boxes = after = self._distances.after(*before, move)
        is_push = after[1] != before[1]
        if is_push and not self.is_dead:
            # Walking can be undone, so only a push can spoil a level.
            self.is_dead = self._distances.is_dead(*after)
        reward = self.params.action_reward
        if is_push:
            reward += self._pay_for_push(before[1], after[1])
        self._phase = "over" if self._is_solved else "playing"
        return self.render(), reward, self._is_solved, self._info(is_valid=True, is_effective=after != before)

    def render(self) -> str:
        return self._tell_objects() if self.params.view == "objects" else self._draw_grid()

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def instructions(self) -> str:
        return (
            "You are in a store room. Push every box onto a target: walk into a box to push it one cell on. "
            "You cannot pull boxes, push two at once, or walk through walls."
        )

    @property
    def legend(self) -> str:
        symbols = self.params.symbols
        things = f"{symbols.player}: you, {symbols.box}: box, {symbols.target}: target, {symbols.wall}: wall"
        both = f"{symbols.player_on_target}: you on a target, {symbols.stored}: box on a target"
        if self.params.view == "objects":
            return (
                f"{things}, {both}; each with its cell: column a, b, ... from the left, row 1, 2, ... from the top. "
                "The outermost rows and columns are walls, too."
            )
        return f"{things}, {symbols.floor}: floor, {both}."

    def oracle(self) -> str:
        """The next move of a solution with the fewest moves; in a dead state, any move that goes anywhere."""
        self._require_playing()
        return ACTIONS[self._distances.best_move(self.player, self.boxes)]

    def snapshot(self) -> object:
        return self.level, self.player, self.boxes, self.is_dead, self._phase

    def restore(self, state: object) -> None:
        level, player, boxes, is_dead, phase = cast("tuple[Level, int, int, bool, Any]", state)
        self._enter(level, Distances(level.room), player, boxes)
        self.is_dead, self._phase = is_dead, phase

    @property
    def _is_solved(self) -> bool:
        return self.boxes == self.level.room.targets

    def _enter(self, level: Level, distances: Distances, player: int, boxes: int) -> None:
        self.level, self.player, self.boxes, self.is_dead = level, player, boxes, False
        self._distances = _IN_PLAY.setdefault(level.room, distances)
        self._scenery = self._name_walls() if self.params.view == "objects" else self._draw_empty_grid()

    def _pay_for_push(self, before: int, after: int) -> float:
        params, targets = self.params, self.level.room.targets
        gained = (after & targets).bit_count() - (before & targets).bit_count()
        pay = params.box_on_reward if gained > 0 else params.box_off_reward if gained < 0 else 0.0
        return pay + (params.solved_reward if after == targets else 0.0)

    def _info(self, *, is_valid: bool, is_effective: bool) -> dict[str, object]:
        return {
            "success": self._is_solved,
            "action_is_valid": is_valid,
            "action_is_effective": is_effective,
            "is_dead": self.is_dead,
            "difficulty": f"boxes: {self.boxes.bit_count()}",
        }

    def _name_walls(self) -> list[str]:
        """The walls that are not part of the outer ring."""
        room, wall = self.level.room, self.params.symbols.wall
        inside = (
            row * room.columns + column for row in range(1, room.rows - 1) for column in range(1, room.columns - 1)
        )
        return [wall + _cell_name(cell, room) for cell in inside if not room.floor >> cell & 1]

    def _draw_empty_grid(self) -> list[str]:
        """One character per cell, targets included, without boxes and player."""
        room, symbols = self.level.room, self.params.symbols
        return [
            symbols.target if room.targets >> cell & 1 else symbols.floor if room.floor >> cell & 1 else symbols.wall
            for cell in range(room.rows * room.columns)
        ]

    def _draw_grid(self) -> str:
        room, symbols = self.level.room, self.params.symbols
        cells = self._scenery.copy()
        for box in cells_of(self.boxes):
            cells[box] = symbols.stored if room.targets >> box & 1 else symbols.box
        cells[self.player] = self._player_symbol()
        text = "".join(cells)
        return "\n".join([text[start : start + room.columns] for start in range(0, len(text), room.columns)])

    def _tell_objects(self) -> str:
        """Player, boxes, open targets and inner walls, each kind in the order of its cells."""
        room, symbols = self.level.room, self.params.symbols
        words = [self._player_symbol() + _cell_name(self.player, room)]
        for box in cells_of(self.boxes):
            words.append((symbols.stored if room.targets >> box & 1 else symbols.box) + _cell_name(box, room))
        for target in cells_of(room.targets & ~self.boxes & ~(1 << self.player)):
            words.append(symbols.target + _cell_name(target, room))
        return " ".join(words + self._scenery)

    def _player_symbol(self) -> str:
        symbols = self.params.symbols
        return symbols.player_on_target if self.level.room.targets >> self.player & 1 else symbols.player


def _cell_name(cell: int, room: Room) -> str:
    row, column = divmod(cell, room.columns)
    return f"{chr(ord('a') + column)}{row + 1}"

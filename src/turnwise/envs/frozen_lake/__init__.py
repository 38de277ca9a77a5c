"""A walk over ice with holes: settings, random layouts, their solutions, and the game itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv, check_split
from turnwise.envs.frozen_lake.layout import (
    ACTIONS,
    SPLITS,
    LakeParams,
    Layout,
    best_moves,
    blind_move,
    draw_layout,
    myopic_move,
    neighbours,
)
from turnwise.infra.seeds import make_rng, random_seed

__all__ = ["FrozenLake"]


_MOVES = {name: move for move, action in enumerate(ACTIONS) for name in (action, action.lower())}


def _hole_blind(env: FrozenLake) -> str:
    return ACTIONS[blind_move(env.layout, env.cell)]


def _myopic(env: FrozenLake) -> str:
    return ACTIONS[myopic_move(env.layout, env.cell)]


class FrozenLake(BaseEnv):
    """A lake of `size` x `size` cells; no time limit of its own."""

    name = "frozen_lake"
    rewards = "1 at the goal"
    Params: ClassVar[type[Settings]] = LakeParams
    has_oracle = True
    baselines: ClassVar[Mapping[str, Callable[[Any], str]]] = {"hole_blind": _hole_blind, "myopic": _myopic}

    params: LakeParams
    layout: Layout
    cell: int
    """Where the player is, counted row by row."""

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._slips: random.Random | None = None
        self._ice = ""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        check_split(split, SPLITS, self.name)
        seed = random_seed() if seed is None else seed
        layout = draw_layout(self.params, seed, split)
        slips = None
        if self.params.is_slippery:
            slips = make_rng("slips", seed if dynamics_seed is None else dynamics_seed)
        self._enter(layout, layout.start, slips)
        self._phase = "playing"
        return self.render()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        self._require_playing()
        move = _MOVES.get(action)
        if move is None:
            move = _MOVES.get(action.strip().lower())
        if move is None:
            return self.render(), 0.0, False, _info(success=False, is_valid=False, is_effective=False)
        before = self.cell
        self.cell = cell = self._targets[before][self._slip(move)]
        is_home = cell == self.layout.goal
        is_over = is_home or self.layout.has_hole(cell)
        if is_over:
            self._phase = "over"
        info = _info(success=is_home, is_valid=True, is_effective=cell != before)
        return self.render(), float(is_home), is_over, info

    def render(self) -> str:
        symbol = self._player_symbol()
        if self.params.view == "objects":
            return f"{symbol}{_cell_name(self.cell, self.layout.size)} {self._ice}"
        # Each row of the text ends with a line break, so a cell's place in it is shifted by its row.
        place = self.cell + self.cell // self.layout.size
        return f"{self._ice[:place]}{symbol}{self._ice[place + 1 :]}"

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTIONS

    @property
    def instructions(self) -> str:
        text = "You walk on a frozen lake. Reach the goal without falling into a hole."
        if self.params.is_slippery:
            text += " The ice is slippery: you may slide to the side of where you want to go."
        return text

    @property
    def legend(self) -> str:
        symbols = self.params.symbols
        people = f"{symbols.player}: you, {symbols.goal}: goal, {symbols.hole}: hole"
        ends = f"{symbols.fallen}: you in a hole, {symbols.arrived}: you on the goal"
        if self.params.view == "objects":
            return f"{people}, {ends}; each with its cell: column a, b, ... from the left, row 1, 2, ... from the top."
        return f"{people}, {symbols.ice}: ice, {ends}."

    def oracle(self) -> str:
        self._require_playing()
        slip_rate = self.params.slip_rate if self.params.is_slippery else 0.0
        return ACTIONS[best_moves(self.layout, slip_rate)[self.cell]]

    def snapshot(self) -> object:
        return self.layout, self.cell, self._phase, self._slips.getstate() if self._slips else None

    def restore(self, state: object) -> None:
        layout, cell, phase, slips_state = cast("tuple[Layout, int, Any, Any]", state)
        slips = None
        if slips_state is not None:
            slips = random.Random()
            slips.setstate(slips_state)
        self._enter(layout, cell, slips)
        self._phase = phase

    def _enter(self, layout: Layout, cell: int, slips: random.Random | None) -> None:
        self.layout, self.cell, self._slips = layout, cell, slips
        self._targets = neighbours(layout.size)
        self._ice = self._describe_objects() if self.params.view == "objects" else self._draw_grid()

    def _slip(self, move: int) -> int:
        if self._slips is None:
            return move
        chance, slip_rate = self._slips.random(), self.params.slip_rate
        if chance >= slip_rate:
            return move
        return (move + (1 if chance < slip_rate / 2 else 3)) % 4

    def _player_symbol(self) -> str:
        symbols = self.params.symbols
        if self.cell == self.layout.goal:
            return symbols.arrived
        return symbols.fallen if self.layout.has_hole(self.cell) else symbols.player

    def _draw_grid(self) -> str:
        """The lake without the player."""
        layout, symbols = self.layout, self.params.symbols
        cells = [symbols.hole if layout.has_hole(cell) else symbols.ice for cell in range(layout.size**2)]
        cells[layout.goal] = symbols.goal
        return "\n".join("".join(cells[row : row + layout.size]) for row in range(0, layout.size**2, layout.size))

    def _describe_objects(self) -> str:
        """Goal and holes without the player; holes column by column, as their names sort."""
        layout, symbols = self.layout, self.params.symbols
        by_column = (row * layout.size + column for column in range(layout.size) for row in range(layout.size))
        holes = [f"{symbols.hole}{_cell_name(cell, layout.size)}" for cell in by_column if layout.has_hole(cell)]
        return " ".join([f"{symbols.goal}{_cell_name(layout.goal, layout.size)}", *holes])


def _cell_name(cell: int, size: int) -> str:
    row, column = divmod(cell, size)
    return f"{chr(ord('a') + column)}{row + 1}"


def _info(*, success: bool, is_valid: bool, is_effective: bool) -> dict[str, object]:
    return {"success": success, "action_is_valid": is_valid, "action_is_effective": is_effective}

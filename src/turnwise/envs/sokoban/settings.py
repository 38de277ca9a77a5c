"""What can be chosen about Sokoban.

In come plain values, out come checked, frozen settings. It refuses to know how a level is drawn or played.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnwise.config.settings import Settings

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

"""What can be chosen about a frozen lake.

In come plain values, out come checked, frozen settings. It refuses to know how a layout is drawn or played.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnwise.config.settings import Settings

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

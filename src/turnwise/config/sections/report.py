"""`report`: what is written down while a run goes on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from turnwise.config.settings import Settings


class ReportSettings(Settings):
    checkpoint_every: int = Field(default=0, ge=0)
    """Save every this many steps; 0: only by time and at the end."""
    checkpoint_minutes: float = Field(default=2.0, ge=0)
    """Save also after the step in which the last checkpoint becomes this old, and 20 times as old as it took to write;
    only the newest of these is kept; 0: never."""
    trajectories_per_step: int = Field(default=4, ge=0)
    """How many are written to trajectories/ each step, tokens included."""
    tokens: Literal["all", "none"] | PositiveInt = 200_000
    """How much of each update goes into the learning record: everything, nothing, or whole groups with at most this
    many tokens."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    trackers: list[str] = Field(default=[])
    """Where metrics go as well: `wandb`, `mlflow`, `swanlab`, `trackio`, or a sink of your own as
    `package.module:Class`."""
    callbacks: list[str] = Field(default=[])
    """Classes that hear of every stage, `package.module:Class` each."""

    @field_validator("tokens", mode="before")
    @classmethod
    def _name_all_choices(cls, given: object) -> object:
        if given in ("all", "none") or (type(given) is int and given > 0):
            return given
        raise ValueError(f"{given!r} given; expected 'all', 'none' or a number of tokens above 0.")

"""The settings of the household game."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnwise.config.settings import Settings, WholeSettings
from turnwise.envs.alfworld.household import TASK_TYPES, TaskType
from turnwise.envs.alfworld.rooms import MAX_RECEPTACLES

_ONLY_GENERATED = ("task_types", "num_receptacles", "num_objects")

# Lists are welcome where a tuple is meant, because YAML knows no tuples.
TaskTypes = Annotated[tuple[TaskType, ...], Field(strict=False, min_length=1)]


class AlfWorldParams(Settings):
    """The settings of AlfWorld."""

    game_file: str | None = None
    """One game of the original, a `game.tw-pddl`; every seed and split plays it."""
    games: str | None = None
    """Many games of the original: a folder, or a list of game files, as text with one path per line or as JSON lines
    with `game_file` and, where the path does not tell, `split`. Without this and `game_file`: generated households.
    Relative paths that are not there are looked for under `$ALFWORLD_DATA`."""
    backend: Literal["builtin", "textworld"] = "builtin"
    """Who plays game files: the built-in rules, or TextWorld itself, slowly, with the extra `alfworld` installed."""
    task_types: TaskTypes = TASK_TYPES
    """Which tasks are generated, all equally often."""
    num_receptacles: int = Field(default=8, ge=4, le=MAX_RECEPTACLES)
    """Pieces of furniture in a generated room."""
    num_objects: int = Field(default=10, ge=2, le=40)
    """Objects in a generated room."""
    oracle: Literal["planner", "explorer"] = "planner"
    """Who demonstrates: one who knows where everything is and wins in the fewest commands, or one who searches for what
    the texts have not told yet."""
    eval_share: float = Field(default=0.2, gt=0, lt=1)
    """The share of all generated rooms that is held out (split `unseen`), and of the tasks in the other rooms (split
    `seen`); of listed games without a split, the share that is held out."""

    @model_validator(mode="after")
    def _sources_agree(self) -> AlfWorldParams:
        if self.game_file is not None and self.games is not None:
            raise ValueError("game_file and games are both given; expected one of them.")
        has_games = self.game_file is not None or self.games is not None or "ALFWORLD_DATA" in os.environ
        if self.backend == "textworld" and not has_games:
            raise ValueError(
                "backend 'textworld' plays game files only; give game_file or games, or set ALFWORLD_DATA."
            )
        return self

    @property
    def games_source(self) -> str | None:
        """Where games are: as `games` says, or all of `$ALFWORLD_DATA` for a backend that plays nothing else."""
        needs_games = self.backend == "textworld" and self.game_file is None
        return self.games or ("$ALFWORLD_DATA" if needs_games else None)

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        if self.game_file is not None:
            return self.idle(*_ONLY_GENERATED, "eval_share", why=f"while {path}.game_file is set")
        return {} if self.games is None else self.idle(*_ONLY_GENERATED, why=f"while {path}.games is set")

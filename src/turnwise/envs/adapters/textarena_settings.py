"""The settings of a game of textarena."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turnwise.config.settings import Settings
from turnwise.envs.adapters.foreign import Option

MODEL_OPPONENTS = ("policy", "league")
"""Those that are language models."""


class TextArenaParams(Settings):
    """The settings of a game of textarena."""

    options: dict[str, Option] = Field(default={})
    """Passed to `textarena.make`: `{max_number: 10}`."""
    opponent: Literal["random", "scripted", "policy", "league"] = "random"
    """The other player of a game for two: random moves, its moves in order, again and again, a frozen policy, or a
    league: one of several frozen policies, drawn by the task's seed."""
    opponent_moves: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """The other player's moves, such as `[col 3]`; empty: what the game last offered in brackets, at random only."""
    opponent_path: str | None = None
    """The frozen policy: the directory of a finished run, or a model folder or hub name. The league: the directory of
    a finished run, whose checkpoints are its members, or a folder of model folders."""
    success_above: float = 0.0
    """An episode that ends with more reward than this counts as a success."""

    @model_validator(mode="after")
    def _opponent_has_what_it_needs(self) -> TextArenaParams:
        if self.opponent == "scripted" and not self.opponent_moves:
            raise ValueError("opponent 'scripted' needs its opponent_moves; none are given.")
        is_model = self.opponent in MODEL_OPPONENTS
        if is_model and not self.opponent_path:
            raise ValueError(
                f"opponent '{self.opponent}' needs its opponent_path: the directory of a finished run, or a model."
            )
        if is_model and self.opponent_moves:
            raise ValueError(f"opponent_moves would have no effect on the opponent '{self.opponent}'; leave them out.")
        if not is_model and self.opponent_path:
            raise ValueError(f"opponent_path would have no effect on the opponent '{self.opponent}'; leave it out.")
        return self

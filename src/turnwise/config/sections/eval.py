"""`eval`: how the policy is measured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from turnwise.config.settings import Settings


class EvalSettings(Settings):
    episodes: int | Literal["all"] = Field(default=400)
    """Held-out episodes of each environment, always the same; `all`: every held-out task once, where they are rows of
    a file, and the default where `env.eval_path` is given; 0: nothing is evaluated, and a trainer of its own opens no
    engine."""
    every: int = Field(default=0, ge=0)
    """Evaluate every this many steps; 0: only before and after."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    samples: int = Field(default=1, ge=1)
    """Plays of each task, for pass@k; more than one need a temperature."""
    first_seed: int = Field(default=0, ge=0)
    """Evaluation tasks count up from here, whatever run.seed is."""

    @field_validator("episodes", mode="before")
    @classmethod
    def _name_all_choices(cls, given: object) -> object:
        if given == "all" or (type(given) is int and given >= 0):
            return given
        raise ValueError(f"{given!r} given; expected 'all' or a number of episodes from 0.")

    @model_validator(mode="after")
    def _draw_what_is_played_again(self) -> EvalSettings:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples: {self.samples} given with temperature 0, which plays a task the same way again. "
                "Set eval.temperature above 0, or leave samples at 1."
            )
        return self

    @property
    def is_wanted(self) -> bool:
        """Whether anything is evaluated."""
        return self.episodes != 0

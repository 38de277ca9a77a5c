"""What can be chosen about Countdown.

In come plain values, out come checked, frozen settings. It refuses to know how a puzzle is drawn, solved or graded.
"""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from turnwise.config.settings import Settings, WholeSettings

MAX_NUMBERS = 6
"""The solver looks at every way to combine them, and there are very many beyond this."""
_OF_DRAWN_PUZZLES = ("min_numbers", "max_numbers", "max_number", "min_target", "max_target")


class CountdownParams(Settings):
    """The settings of Countdown."""

    path: str | None = None
    """A file of puzzles with the fields `nums` and `target`: JSON, JSON lines, CSV or Parquet; null draws random
    ones."""
    min_numbers: int = Field(default=3, ge=2, le=MAX_NUMBERS)
    """The fewest numbers of a random puzzle."""
    max_numbers: int = Field(default=4, ge=2, le=MAX_NUMBERS)
    """The most numbers of a random puzzle."""
    max_number: int = Field(default=99, ge=1, le=9999)
    """Numbers of a random puzzle go from 1 to this one."""
    min_target: int = Field(default=10, ge=0)
    """The smallest target of a random puzzle."""
    max_target: int = Field(default=99, ge=0)
    """The largest target of a random puzzle."""
    operators: str = Field(default="+-*/", min_length=1)
    """A random puzzle can be solved with these, and the oracle uses no other; answers may use all of + - * /."""
    attempts: int = Field(default=1, ge=1)
    """Answers with the right numbers that may be given; each wrong one is shown with its value."""
    numbers_reward: float = Field(default=0.1, ge=0, lt=1)
    """What an answer with the right numbers and a wrong value is worth; a right one is worth 1."""
    eval_share: float = Field(default=0.1, gt=0, lt=1)
    """The share of all puzzles that is held out of training, chosen by a hash of each."""

    @field_validator("operators")
    @classmethod
    def _known_operators(cls, given: str) -> str:
        if not set(given) <= set("+-*/") or len(set(given)) < len(given):
            raise ValueError(f"{given!r} given; expected some of + - * /, each at most once, such as '+-'.")
        return given

    @model_validator(mode="after")
    def _agree(self) -> CountdownParams:
        for lower, upper in (("min_numbers", "max_numbers"), ("min_target", "max_target")):
            if getattr(self, upper) < getattr(self, lower):
                raise ValueError(f"{upper} {getattr(self, upper)} is below {lower} {getattr(self, lower)}.")
        return self

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return {} if self.path is None else self.idle(*_OF_DRAWN_PUZZLES, why=f"while {path}.path is set")

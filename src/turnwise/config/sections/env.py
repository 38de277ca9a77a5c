"""`env`: which world is played in."""

from __future__ import annotations

from pydantic import Field

from turnwise.config.settings import Settings


class EnvSettings(Settings):
    """Which world, and its own settings beside `type` (see `turnwise envs`)."""

    type: str
    """A registered name, 'package.module:Class', or another package's world such as 'gymnasium:FrozenLake-v1'."""
    train: dict[str, str | int | float | bool | None] = Field(default={})
    """Settings that differ while training; evaluation uses the ones outside."""

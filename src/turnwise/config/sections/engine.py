"""`engine`: who samples tokens."""

from __future__ import annotations

from pydantic import PositiveInt

from turnwise.config.settings import Settings


class EngineSettings(Settings):
    type: str = "local"
    """A registered engine or 'package.module:Class'."""


class LocalEngineParams(Settings):
    max_rows: PositiveInt = 512
    """Most sequences in one forward pass."""

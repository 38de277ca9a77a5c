"""`engine`: who samples tokens."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from turnwise.config.sections.device import Device
from turnwise.config.settings import Settings


class EngineSettings(Settings):
    type: str = "local"
    """A registered engine or 'package.module:Class'."""


class LocalEngineParams(Settings):
    max_rows: PositiveInt = 512
    """Most sequences in one forward pass."""
    device: Device = "auto"
    """Where the model samples: auto (a GPU where there is one), cpu, cuda, cuda:1, or another name that torch knows."""


class ScriptedEngineParams(Settings):
    replies: list[str] = Field(default=["<answer>1</answer>"], min_length=1)
    """What it says, one of them by the dice of each request: for tests, and for a look at a loop without a model."""

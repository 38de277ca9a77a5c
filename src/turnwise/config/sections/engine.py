"""`engine`: who samples tokens."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt

from turnwise.config.sections.device import Device
from turnwise.config.sections.endpoint import EndpointSettings
from turnwise.config.settings import Settings


class EngineSettings(Settings):
    tells_tokens: ClassVar[bool] = True
    """Whether replies come with the ids that were sampled and their log-probs; what does not cannot be learnt from."""

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


class OpenAiEngineParams(EndpointSettings):
    tells_tokens: ClassVar[bool] = False

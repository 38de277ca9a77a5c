"""`learn.parallel`: how many processes learn together, and what each of them holds."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt, field_validator

from turnwise.config.settings import Settings, WholeSettings

_TIMEOUT_S = 1800.0


class OneProcess(Settings):
    type: Literal["none"] = "none"
    """The process of the loop learns itself."""
    ranks: PositiveInt = 1
    """Always 1."""

    @field_validator("ranks")
    @classmethod
    def _check_ranks(cls, given: int) -> int:
        if given > 1:
            raise ValueError(f"{given} given and learn.parallel.type is 'none'. Set the type to 'fsdp' or 'ddp'")
        return given


class DdpRanks(Settings):
    type: Literal["ddp"]
    """Every rank holds all weights and learns from its share of the rows; gradients are summed."""
    ranks: PositiveInt = 2
    """Processes that learn together, each on a device of its own where there are GPUs."""
    timeout_s: PositiveFloat = _TIMEOUT_S
    """The longest that ranks may take to start, or for one update or checkpoint."""


class FsdpRanks(Settings):
    type: Literal["fsdp"]
    """Weights, gradients and optimizer lie in pieces on the ranks; a layer is put together while it computes."""
    ranks: PositiveInt = 2
    """Processes that learn together, each on a device of its own where there are GPUs."""
    cpu_offload: bool = False
    """Keep the pieces in the memory of the machine and not on the GPUs: less memory there, and slower."""
    timeout_s: PositiveFloat = _TIMEOUT_S
    """The longest that ranks may take to start, or for one update or checkpoint."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return self.idle("cpu_offload", why="when learn.device is 'cpu'") if run.learn.device == "cpu" else {}


ParallelSettings = OneProcess | DdpRanks | FsdpRanks

"""Which groups are learnt from first: numbers from a group's policy version and how often it was used.

A priority is asked when a group comes in and after each use, so it may depend on nothing else that changes. Equal
numbers: first in, first out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from turnwise.config.settings import Settings, WholeSettings
from turnwise.infra.seeds import fingerprint
from turnwise.types import Experience


def _idle_without_reuse(params: Settings, run: WholeSettings, *names: str) -> dict[str, str]:
    if run.buffer.reuse_cooldown is not None:
        return {}
    return params.idle(*names, why="without buffer.reuse_cooldown: no group is used twice")


class Newest:
    """`buffer.priority: {type: newest}`: the newest policy's groups first, however often they were used."""

    Params = Settings

    def __init__(self, params: Settings) -> None:
        self.params = params

    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        return float(policy_version)


class LinearDecayParams(Settings):
    decay: float = Field(default=2.0, ge=0)
    """Versions that a group falls behind with each use."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return _idle_without_reuse(self, run, "decay")


class LinearDecay:
    """`buffer.priority: {type: linear_decay}`: version - decay * uses."""

    Params = LinearDecayParams

    def __init__(self, params: LinearDecayParams) -> None:
        self.params = params

    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        return policy_version - self.params.decay * use_count


class DecayLimitRandomizationParams(Settings):
    decay: float = Field(default=2.0, ge=0)
    """Versions that a group falls behind with each use."""
    use_count_limit: int = Field(default=3, ge=0)
    """Most uses of a group; 0: no limit."""
    sigma: float = Field(default=0.0, ge=0)
    """Spread of the noise that is added, so that neighbours change places."""

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        return _idle_without_reuse(self, run, "decay", "use_count_limit")


class DecayLimitRandomization:
    """`buffer.priority: {type: decay_limit_randomization}`: version - decay * uses + noise, up to a number of uses."""

    Params = DecayLimitRandomizationParams

    def __init__(self, params: DecayLimitRandomizationParams) -> None:
        self.params = params

    def __call__(self, policy_version: int, use_count: int, seed: int) -> float | None:
        if 0 < self.params.use_count_limit <= use_count:
            return None
        noise = np.random.default_rng(seed).normal(scale=self.params.sigma) if self.params.sigma else 0.0
        return float(policy_version - self.params.decay * use_count + noise)


def priority_seed(group_id: str, use_count: int) -> int:
    """The dice of one group between two uses: the same in every process, and after a resume."""
    return fingerprint(f"{group_id}|{use_count}")


def group_version(experiences: Sequence[Experience]) -> int:
    """A group is as old as its oldest tokens."""
    return min(experience.policy_version for experience in experiences)

"""An environment that misbehaves on request, or at random, for the tests of isolation."""

from __future__ import annotations

import os
import random
import time
from typing import Any

from pydantic import Field

from turnwise.config.settings import Settings
from turnwise.envs.base import BaseEnv
from turnwise.envs.env_worker import OUT_OF_MEMORY


class FaultyParams(Settings):
    hang_rate: float = Field(default=0.0, ge=0, le=1)
    """How often a step never comes back."""
    crash_rate: float = Field(default=0.0, ge=0, le=1)
    """How often a step kills its process."""


class FaultyEnv(BaseEnv):
    """Counts steps; `hang`, `exit`, `starve`, `raise`, `leak` and `segfault` do what they say."""

    name = "faulty"
    Params = FaultyParams
    has_oracle = True

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        self._count = 0
        self._dice = random.Random(f"{seed}/{dynamics_seed}")
        return f"seed {seed}"

    def step(self, action: str) -> tuple[Any, ...]:
        draw = self._dice.random()
        if action == "hang" or draw < self.params.hang_rate:
            time.sleep(3600)
        if action == "exit" or draw > 1 - self.params.crash_rate:
            os._exit(3)
        if action == "starve":
            os._exit(OUT_OF_MEMORY)
        if action == "segfault":
            os.kill(os.getpid(), 11)
        if action == "raise":
            raise RuntimeError("a fault of its own")
        if action == "leak":
            self._held = bytearray(1 << 30)
        if action == "odd":
            return object(), "one", False, {}
        self._count += 1
        info = {"success": True, "action_is_valid": True, "action_is_effective": True, "odd": {1, 2}}
        return f"step {self._count}", 1.0, self._count == 3, info

    @property
    def action_names(self) -> tuple[str, ...]:
        return ("go", "stay")

    @property
    def instructions(self) -> str:
        return f"Go on, {os.getpid()}."

    def oracle(self) -> str:
        return "go"

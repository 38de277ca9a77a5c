"""An environment that does everything an author must not do, a different thing for every seed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from turnwise.envs.base import BaseEnv


class UnspeakableError(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class HostileEnv(BaseEnv):
    """Evaluation is played without malice."""

    name = "hostile"
    gate = threading.Event()
    """A call that blocks waits for it; nobody sets it."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        self._kind = -1 if split == "eval" or seed is None else seed % 10
        return "half \ud800 a character" if self._kind == 0 else "hello"

    def step(self, action: str) -> tuple[Any, ...]:
        info: dict[str, Any] = {"success": True, "action_is_valid": True, "action_is_effective": True}
        text: Any = "again \udfff" if self._kind == 0 else "again"
        reward: Any = float(len(action) % 3)
        if self._kind == 1:
            raise asyncio.CancelledError
        if self._kind == 2:
            raise UnspeakableError
        if self._kind == 3:
            reward = 1e300
        if self._kind == 4:
            info["digits"], info["self"] = 10**5000, info
        if self._kind == 5:
            text = "word " * 200_000
        if self._kind == 6:
            info["success"] = "no"
        if self._kind == 7:
            self.gate.wait()
        if self._kind == 8:
            raise SystemExit(3)
        return text, reward, True, info

"""Time for tests: a deadline passes when the test says so, or when nothing else happens, and not on a slow machine."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    # Not in the environment of the agent frameworks, whose programs import this module too.
    import pytest

T = TypeVar("T")

HANG_S = 240.0
"""For waits that end by themselves: it is there to end a test that hangs, and says nothing about speed."""

_QUIET_S = 0.02
"""After which nothing more is on its way between two ends in one process."""


class LoopClock:
    """The clock of every event loop, for as long as `patch` lasts: it goes as usual, and can be put forward."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        self._loops: WeakSet[asyncio.BaseEventLoop] = WeakSet()
        patch.setattr(asyncio.BaseEventLoop, "time", lambda loop: self._read(loop))

    def put_forward(self, seconds: float) -> None:
        """From any thread: what waits for less than that is over."""
        self._ahead_s += seconds
        for loop in list(self._loops):
            if loop.is_running():
                # It may be asleep, with its mind on the old time.
                loop.call_soon_threadsafe(lambda: None)

    def _read(self, loop: asyncio.BaseEventLoop) -> float:
        self._loops.add(loop)
        return time.monotonic() + self._ahead_s


def run_hastily(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, but where all wait the time is over at once. Not for work in other threads or processes."""
    with asyncio.Runner(loop_factory=_HastyLoop) as runner:
        return runner.run(main)


class _HastySelector(selectors.DefaultSelector):
    ahead_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= _QUIET_S:
            return super().select(timeout)
        ready = super().select(_QUIET_S)
        if not ready:
            self.ahead_s += timeout
        return ready


class _HastyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._hasty = _HastySelector()
        super().__init__(self._hasty)

    def time(self) -> float:
        return time.monotonic() + self._hasty.ahead_s

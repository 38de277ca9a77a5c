"""Every wait has an owner, a reason and a deadline; one that is long or fails is told with all three."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from turnwise.errors import SyncError
from turnwise.infra.wait_tracking import waiting

log = logging.getLogger(__name__)

_LONG_S = 30.0
"""After which a wait is told."""
_POLL_S = 0.1
"""How often a wait looks again without being woken: other processes cannot ring."""


class Bell:
    """Wakes whoever waits in this process, so that they look again at what they wait for."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait_until(
        self, is_over: Callable[[], bool], *, who: str, reason: str, timeout_s: float, setting: str = "sync.timeout_s"
    ) -> float:
        """Return the seconds waited once `is_over`; a SyncError when it does not come to pass in time."""
        if is_over():
            return 0.0
        with waiting(who, reason, timeout_s):
            return await self._wait_until(is_over, who, reason, timeout_s, setting)

    async def _wait_until(
        self, is_over: Callable[[], bool], who: str, reason: str, timeout_s: float, setting: str
    ) -> float:
        started_s = time.monotonic()
        is_told = False
        while not is_over():
            waited_s = time.monotonic() - started_s
            if waited_s >= timeout_s:
                raise SyncError(
                    f"{who} has waited {waited_s:.0f} s for {reason}, and {setting} is {timeout_s:g}. "
                    f"Look at what the other side does, or raise {setting}."
                )
            if waited_s >= _LONG_S and not is_told:
                log.warning("%s has been waiting %.0f s for %s", who, waited_s, reason)
                is_told = True
            await self._rung_within(min(_POLL_S, timeout_s - waited_s))
        return time.monotonic() - started_s

    async def _rung_within(self, seconds: float) -> None:
        # Not `wait_for`: before Python 3.12 it swallows a cancellation that comes together with the ring.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()

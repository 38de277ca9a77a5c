"""How the threads of the matrix library wait for each other: a moment awake, then asleep.

Left alone they wait awake for up to milliseconds, so as to be quick where they have the cores for themselves. Beside a
busy neighbour the thread that is waited for has no core, because those who wait for it hold them: a step then takes ten
times as long. A moment is enough for the gap between two operations of a pass, and costs a neighbour nothing.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from turnwise.errors import EnvError
from turnwise.infra.wait_tracking import waiting

_CHOSEN_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SHORT_WAITS = {
    # GNU's library, which torch comes with on Linux: rounds of waiting awake. It takes as many itself, where it knows
    # that its threads are more than there are cores.
    "GOMP_SPINCOUNT": "1000",
    # Intel's and LLVM's: milliseconds.
    "KMP_BLOCKTIME": "0",
}


def limit_spin_wait(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set it for this process and its children, before torch is loaded; what the user has set stays."""
    if not any(name in environ for name in _CHOSEN_BY_USERS):
        environ.update(_SHORT_WAITS)


_MMAP_THRESHOLD = -3
"""The C library's number of the option: blocks from this size on are asked of the system, one by one."""
_LARGE_BYTES = 1 << 20


def trim_memory() -> bool:
    """Give back what is free now; False where there was nothing, or the C library is another one than Linux has."""
    trim = _of_c_library("malloc_trim")
    return trim is not None and bool(trim(0))


def return_large_blocks_at_once() -> bool:
    """From here on, what is large goes back when it is freed: for a process that makes and drops the same large blocks.

    Without it the C library soon takes them from memory that it keeps, in pieces that no other block fits into. It
    costs the time in which the system empties new pages. False where the C library is another one than Linux has.
    """
    set_option = _of_c_library("mallopt")
    return set_option is not None and bool(set_option(_MMAP_THRESHOLD, _LARGE_BYTES))


def _of_c_library(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


States = tuple[Any, Any]
"""Of the generator of `random` and of that of numpy."""

MAX_TURN_S = 300.0
"""A call that takes longer counts as hanging and is abandoned."""
_LOOK_S = 1.0

_turn = threading.RLock()
_turns: list[tuple[GlobalRngGuard, float]] = []
"""Who has the generators and since when; further entries are calls inside that call."""


class GlobalRngGuard:
    """The global generators as one environment sees them."""

    def __init__(self, owner: str) -> None:
        """`owner` is how those who wait for it call it."""
        self.owner = owner
        self.max_turn_s = MAX_TURN_S
        self.states = _seeded(0)
        """Where the generators stand; what an episode needs to go on from here."""

    def seed(self, seed: int) -> None:
        self.states = _seeded(seed)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """EnvError where another environment does not come back with them."""
        _take_turn(self.owner)
        _turns.append((self, time.monotonic()))
        try:
            outside = _read()
            _write(self.states)
            try:
                yield
            finally:
                self.states = _read()
                _write(outside)
        finally:
            _turns.pop()
            _turn.release()


def _take_turn(owner: str) -> None:
    """Wait for as long as whoever has the turn may still come back, however many are before."""
    if _turn.acquire(blocking=False):
        return
    with waiting(owner, "its turn at the global random generators", None):
        while not _turn.acquire(timeout=_LOOK_S):
            for holder, since_s in _turns[:1]:
                if (held_s := time.monotonic() - since_s) > holder.max_turn_s:
                    raise EnvError(
                        f"{owner} draws from the global random generators, and a call of {holder.owner} has kept them "
                        f"for {held_s:.3g} s. Set rollout.isolation.type=process: a call that hangs then costs one "
                        "episode."
                    )


def _seeded(seed: int) -> States:
    return random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()


def _read() -> States:
    return random.getstate(), np.random.get_state()


def _write(states: States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])

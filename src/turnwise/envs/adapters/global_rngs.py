"""Generators of one's own for code that draws from the global ones.

In comes a seed; while foreign code runs, the global generators of `random` and numpy are the environment's, and
afterwards they are what they were. So the code neither disturbs others nor is disturbed, and equal seeds give equal
episodes whatever else draws in between. The generators are the process's: in several threads environments take turns,
and one that keeps them too long is named to those who wait. It refuses to know what the code does.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from turnwise.errors import EnvError
from turnwise.floor.waits import waiting

States = tuple[Any, Any]
"""Of the generator of `random` and of that of numpy."""

MAX_TURN_S = 300.0
"""A call that takes longer is taken for one that hangs: nobody waits for it any more."""
_LOOK_S = 1.0

_turn = threading.RLock()
_turns: list[tuple[OwnGlobalRngs, float]] = []
"""Who has the generators and since when; further entries are calls inside that call."""


class OwnGlobalRngs:
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

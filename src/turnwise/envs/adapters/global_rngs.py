"""Generators of one's own for code that draws from the global ones.

In comes a seed; while foreign code runs, the global generators of `random` and numpy are the environment's, and
afterwards they are what they were. So the code neither disturbs others nor is disturbed, and equal seeds give equal
episodes whatever else draws in between. It refuses to know what the code does. For one thread.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

States = tuple[Any, Any]
"""Of the generator of `random` and of that of numpy."""


class OwnGlobalRngs:
    """The global generators as one environment sees them."""

    def __init__(self) -> None:
        self.states = _seeded(0)
        """Where the generators stand; what an episode needs to go on from here."""

    def seed(self, seed: int) -> None:
        self.states = _seeded(seed)

    @contextmanager
    def inside(self) -> Iterator[None]:
        outside = _read()
        _write(self.states)
        try:
            yield
        finally:
            self.states = _read()
            _write(outside)


def _seeded(seed: int) -> States:
    return random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()


def _read() -> States:
    return random.getstate(), np.random.get_state()


def _write(states: States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])

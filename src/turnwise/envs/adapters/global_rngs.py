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

_States = tuple[Any, Any]


class OwnGlobalRngs:
    """The global generators as one environment sees them."""

    def __init__(self) -> None:
        self._states = _seeded(0)

    def seed(self, seed: int) -> None:
        self._states = _seeded(seed)

    @contextmanager
    def inside(self) -> Iterator[None]:
        outside = _read()
        _write(self._states)
        try:
            yield
        finally:
            self._states = _read()
            _write(outside)


def _seeded(seed: int) -> _States:
    return random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()


def _read() -> _States:
    return random.getstate(), np.random.get_state()


def _write(states: _States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])

"""The clock of a simulated cluster: things happen after a wait, or after work that shares a number of cores.

In: callbacks with how long each of them takes. Out: the same callbacks, in their order, while `now` goes on. It refuses
to know what is waited for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

Then: TypeAlias = Callable[[], None]
_NOTHING = 1e-12
"""Work that is left over by rounding."""


class Clock:
    """`cores` is how many can work at full speed; more share them evenly. Waits need none."""

    def __init__(self, cores: float) -> None:
        self.now = 0.0
        self._cores = cores
        self._waits: list[tuple[float, int, Then]] = []
        self._numbers = count()
        self._work: dict[int, tuple[float, Then]] = {}

    def wait(self, seconds: float, then: Then) -> None:
        heapq.heappush(self._waits, (self.now + seconds, next(self._numbers), then))

    def work(self, seconds: float, then: Then) -> None:
        """`seconds` of a core that nobody else wants."""
        self._work[next(self._numbers)] = (seconds, then)

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Raises RuntimeError where nothing is left to happen before that."""
        while not is_over():
            if not self._waits and not self._work:
                raise RuntimeError("the simulated cluster stands still: everybody waits for somebody else")
            self._advance()

    def _advance(self) -> None:
        """To the next thing that happens."""
        speed = min(1.0, self._cores / len(self._work)) if self._work else 1.0
        to_work = min((left for left, _ in self._work.values()), default=float("inf")) / speed
        to_wait = self._waits[0][0] - self.now if self._waits else float("inf")
        passed = max(0.0, min(to_work, to_wait))
        self.now += passed
        ended: list[Then] = []
        for number, (left, then) in list(self._work.items()):
            left -= passed * speed
            if left <= _NOTHING:
                del self._work[number]
                ended.append(then)
            else:
                self._work[number] = (left, then)
        while self._waits and self._waits[0][0] <= self.now + _NOTHING:
            ended.append(heapq.heappop(self._waits)[2])
        for then in ended:
            then()

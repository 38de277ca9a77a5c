"""The `turnwise` command on a machine that is not well: `python -m tests.chaos.launch WHAT SEED WORDS …`.

`slow-disk`: writing through to the disk, renaming and making files take up to a quarter of a second. `clock`: the clock
on the wall says another day whenever it is looked at.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from turnwise.cli import main

_LONGEST_S = 0.25
_FARTHEST_S = 86_400.0


def make_disk_slow(dice: random.Random) -> None:
    def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*given: Any, **named: Any) -> Any:
            time.sleep(dice.uniform(0.0, _LONGEST_S))
            return call(*given, **named)

        return slow

    for name in ("fsync", "replace", "rename", "link", "mkdir"):
        setattr(os, name, slowly(getattr(os, name)))


def make_clock_jump(dice: random.Random) -> None:
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + dice.uniform(-_FARTHEST_S, _FARTHEST_S)
    time.time_ns = lambda: right_ns() + int(dice.uniform(-_FARTHEST_S, _FARTHEST_S) * 1e9)


_TROUBLES = {"slow-disk": make_disk_slow, "clock": make_clock_jump}

if __name__ == "__main__":
    what, seed, *words = sys.argv[1:]
    _TROUBLES[what](random.Random(seed))
    sys.exit(main(words))

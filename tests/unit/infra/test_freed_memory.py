"""Memory that was freed is seen to be back at the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_MAKE_AND_DROP = """
import sys
from pathlib import Path
from turnwise.infra.process_state import return_large_blocks_at_once

def held_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

if sys.argv[1] == "at once" and not return_large_blocks_at_once():
    sys.exit("no such C library")
# The first one that is dropped makes the C library take blocks of its size from memory that it keeps.
bytearray(8_000_000)
before = held_mb()
blocks = [bytearray(4_000_000) for _ in range(40)]
del blocks[:-1:2]
print(held_mb() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library of Linux")
def test_large_blocks_between_others_go_back_at_once() -> None:
    """Of 160 MB every second block is dropped; 84 MB are still in use."""
    kept, returned = (
        float(subprocess.run([sys.executable, "-c", _MAKE_AND_DROP, how], capture_output=True, check=True).stdout)
        for how in ("later", "at once")
    )
    assert kept > 120
    assert 80 < returned < 100

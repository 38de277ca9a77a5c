"""Memory that was freed goes back to the system.

The C library keeps freed blocks for later, and the tensors of an update leave it with many that no rollout asks for.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_MMAP_THRESHOLD = -3
"""The C library's number of the option: blocks from this size on are asked of the system, one by one."""
_LARGE_BYTES = 1 << 20


def return_freed_memory() -> bool:
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

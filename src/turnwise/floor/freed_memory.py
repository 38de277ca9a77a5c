"""Memory that was freed goes back to the system.

The C library keeps freed blocks for later, and the tensors of an update leave it with many that no rollout asks for.
"""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> bool:
    """Give back what is free now; False where there was nothing, or the C library is another one than Linux has."""
    if not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))

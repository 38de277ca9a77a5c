"""How the threads of the matrix library wait for each other: a moment awake, then asleep.

Left alone they wait awake for up to milliseconds, so as to be quick where they have the cores for themselves. Beside a
busy neighbour the thread that is waited for has no core, because those who wait for it hold them: a step then takes ten
times as long. A moment is enough for the gap between two operations of a pass, and costs a neighbour nothing.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_CHOSEN_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SHORT_WAITS = {
    # GNU's library, which torch comes with on Linux: rounds of waiting awake. It takes as many itself, where it knows
    # that its threads are more than there are cores.
    "GOMP_SPINCOUNT": "1000",
    # Intel's and LLVM's: milliseconds.
    "KMP_BLOCKTIME": "0",
}


def wait_briefly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set it for this process and its children, before torch is loaded; what the user has set stays."""
    if not any(name in environ for name in _CHOSEN_BY_USERS):
        environ.update(_SHORT_WAITS)

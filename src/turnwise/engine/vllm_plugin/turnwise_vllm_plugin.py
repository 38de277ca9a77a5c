"""What vLLM calls in every process of a server: it learns of our way of weights, and ends with the run that started it.

It runs in vLLM's own environment and imports nothing of turnwise. vLLM finds it as an entry point in the folder beside
this file, which is on the server's PYTHONPATH.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

_RUN = "TURNWISE_RUN_PID"
_LOOK_S = 1.0
_GRACE_S = 10.0


def register() -> None:
    """The entry point; vLLM may call it more than once."""
    with suppress(ValueError):  # that it is known already
        WeightTransferEngineFactory.register_engine("shared_memory", "turnwise_shared_memory", "SharedMemoryTransfer")
    if run := os.environ.get(_RUN):
        threading.Thread(target=_end_with_parent, args=(int(run),), daemon=True).start()


def _end_with_parent(run: int) -> None:
    """A run that was killed cannot stop its server, so every process looks whether who started it is still there."""
    parent = os.getppid()
    # The run may have ended while this process was loading.
    while _is_alive(run) and os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Asynchronous work called from code that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run to the end, also from inside a notebook, where an event loop is running already."""
    # Not called inside an `except`: every failure of the work would then begin with "no running event loop".
    if not is_in_event_loop():
        return asyncio.run(work)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()


def is_in_event_loop() -> bool:
    """Whether the caller is a coroutine, or was called by one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

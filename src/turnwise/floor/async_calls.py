"""Asynchronous work called from code that is not, and how it ends where it is told to."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end, as systems that run jobs do; its work was cancelled and has cleaned up."""


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run to the end, also from inside a notebook, where an event loop is running already.

    SIGTERM cancels the work as Ctrl-C does, between two steps of the event loop, and then raises `Terminated`; a
    program's own handler of that signal stays.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_here(work)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()


async def unbroken(work: Awaitable[T]) -> T:
    """To its end also where it is cancelled: that is heard afterwards. Whoever cancels it twice is heard at once."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            await running
        raise


def _run_here(work: Coroutine[object, object, T]) -> T:
    is_terminated = False

    async def until_terminated() -> T:
        main = asyncio.current_task()
        assert main is not None

        def terminate() -> None:
            nonlocal is_terminated
            is_terminated = True
            main.cancel()

        if _may_listen():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await work

    try:
        return asyncio.run(until_terminated())
    except asyncio.CancelledError:
        if is_terminated:
            raise Terminated from None
        raise


def _may_listen() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

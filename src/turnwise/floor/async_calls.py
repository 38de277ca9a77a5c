"""Asynchronous work called from code that is not, and how it ends where it is told to."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
_LOOK_S = 0.2
"""How often a caller in a coroutine looks whether Ctrl-C has cancelled it."""
_BEGIN_S = 10.0
"""Longest wait for a thread to begin where Ctrl-C comes in that moment."""
_END_S = 60.0
"""Longest wait for tasks that were cancelled; a program may ignore that."""
log = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """SIGTERM asked the process to end, as systems that run jobs do; its work was cancelled and has cleaned up."""


def run_async(work: Coroutine[object, object, T]) -> T:
    """Run to the end, also from inside a notebook, where an event loop is running already.

    SIGTERM cancels the work as Ctrl-C does, between two steps of the event loop, and then raises `Terminated`; a
    program's own handler of that signal stays. Ctrl-C raises KeyboardInterrupt when the work has cleaned up; a second
    one does not wait for that.
    """
    # Not called inside an `except`: every failure of the work would then begin with "no running event loop".
    if not is_in_event_loop():
        return _run_here(work)
    return _run_in_thread(work)


def is_in_event_loop() -> bool:
    """Whether the caller is a coroutine, or was called by one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def unbroken(work: Awaitable[T]) -> T:
    """To its end also where it is cancelled: that is heard afterwards. Whoever cancels it twice is heard at once."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if not running.done():
            await running
        raise


async def gather_or_end(work: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """As `asyncio.gather`, but where one fails, or the caller is cancelled, none of the others runs on."""
    running = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*running)
    finally:
        await end_tasks(running)


async def end_tasks(tasks: Iterable[asyncio.Task[T]]) -> None:
    """Cancel what still runs, and wait until it has ended. Failures are dropped."""
    unfinished = [task for task in tasks if not task.done()]
    for task in unfinished:
        # A second cancellation would break off what the first one has it clean up.
        if not task.cancelling():
            task.cancel()
    if not unfinished:
        return
    ended, running = await asyncio.wait(unfinished, timeout=_END_S)
    for task in ended:
        # Asked for, so that Python does not print it when the task is collected.
        _ = task.cancelled() or task.exception()
    if running:
        log.warning("%d tasks still run %g s after they were cancelled: %s", len(running), _END_S, running)


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


def _run_in_thread(work: Coroutine[object, object, T]) -> T:
    """Under an event loop of its own. Ctrl-C reaches the thread of the caller, which passes it on."""
    has_begun = threading.Event()
    cancel: Callable[[], object] | None = None
    outcome: Future[T] = Future()
    caller = asyncio.current_task()
    # Read before the work begins: Ctrl-C may come before this thread waits for it.
    num_cancels = caller.cancelling() if caller is not None else 0

    async def cancellable() -> T:
        nonlocal cancel
        main = asyncio.current_task()
        assert main is not None
        loop = asyncio.get_running_loop()
        cancel = lambda: loop.call_soon_threadsafe(main.cancel)  # noqa: E731 - a variable of the caller
        has_begun.set()
        return await work

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(cancellable()))
        except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
            outcome.set_exception(error)
        finally:
            has_begun.set()

    try:
        # A daemon: after a second Ctrl-C the interpreter can end without it.
        threading.Thread(target=run, name="turnwise-async", daemon=True).start()
        # `asyncio.run` answers the first Ctrl-C by cancelling its main task, which cannot react while it waits here.
        while not wait((outcome,), timeout=_LOOK_S).done:
            if caller is not None and caller.cancelling() > num_cancels:
                raise KeyboardInterrupt
    except KeyboardInterrupt as interrupt:
        has_begun.wait(_BEGIN_S)
        if cancel is not None:
            with suppress(RuntimeError):  # its loop has just been closed
                cancel()
            wait((outcome,))
            failure = outcome.exception()
            if failure is not None and not isinstance(failure, asyncio.CancelledError):
                raise interrupt from failure
        raise
    return outcome.result()


def _may_listen() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

"""Threads for other people's code, which may never come back: nobody has to wait for them, and the process can end.

A call that nobody waits for any more goes on in its thread; the thread is counted as left behind, and another takes its
place, so that calls that hang never use up the room of those that do not. The standard library's pool has neither: its
threads are joined when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """At most `max_threads` calls at the same time, beside those that were left behind."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._num_threads = self._num_idle = self._num_left = 0
        self._is_closed = False
        _all.add(self)

    @property
    def num_left_behind(self) -> int:
        """Abandoned calls that still run."""
        return self._num_left

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = _Call(self, partial(fn, *args, **kwargs))
        with self._lock:
            if self._is_closed:
                raise RuntimeError("these threads were shut down")
            self._waiting.put(call)
            if self._num_idle:
                self._num_idle -= 1
            elif self._num_threads - self._num_left < self._max_threads:
                self._start_thread()
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No further calls are taken. Whatever `wait` says, nobody is waited for: one of them may never end."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._num_threads):
                self._waiting.put(None)

    def abandon(self) -> None:
        """Count a running call as abandoned."""
        with self._lock:
            self._num_left += 1
            if not self._waiting.empty():
                self._start_thread()

    def come_back(self) -> None:
        """A call that was left behind has ended after all."""
        with self._lock:
            self._num_left -= 1

    def _start_thread(self) -> None:
        self._num_threads += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._num_threads}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.run()
            # Before it waits: what the call held must not live as long as this thread.
            del call
            with self._lock:
                if self._waiting.empty():
                    self._num_idle += 1


_all: WeakSet[DaemonThreads] = WeakSet()


class _Call(Future[Any]):
    def __init__(self, threads: DaemonThreads, call: Callable[[], Any]) -> None:
        super().__init__()
        self._threads = threads
        self._call: Callable[[], Any] | None = call
        self._is_left = False
        self._change = threading.Lock()

    def cancel(self) -> bool:
        """A running call cannot be stopped; canceling it only ends the wait."""
        if super().cancel():
            return True
        with self._change:
            if self.running() and not self._is_left:
                self._is_left = True
                self._threads.abandon()
        return False

    def run(self) -> None:
        assert self._call is not None
        call, self._call = self._call, None
        if not self.set_running_or_notify_cancel():
            return
        try:
            outcome = call()
        except StopIteration as error:
            # A coroutine cannot be given one: the awaiting code would never receive it.
            raised = RuntimeError(f"StopIteration: {error}")
            raised.__cause__ = error
            self._end(partial(self.set_exception, raised))
        except BaseException as error:  # noqa: BLE001 - it is for whoever waits, whatever it is
            self._end(partial(self.set_exception, error))
        else:
            self._end(partial(self.set_result, outcome))

    def _end(self, tell: Callable[[], None]) -> None:
        with self._change:
            tell()
            if self._is_left:
                self._threads.come_back()


def count_abandoned() -> int:
    """Abandoned calls of this process that still run."""
    return sum(threads.num_left_behind for threads in list(_all))


def call_with_timeout(limit_s: float | None, call: Callable[[], T]) -> T:
    """What a call returns or raises; TimeoutError where it takes longer, and then it is left behind. None: no limit."""
    if limit_s is None:
        return call()
    threads = DaemonThreads(1, "bounded")
    running = threads.submit(call)
    try:
        return running.result(limit_s)
    except TimeoutError:
        running.cancel()
        raise
    finally:
        threads.shutdown()


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


async def finish_before_cancel(work: Awaitable[T]) -> T:
    """Finish `work` before a cancellation takes effect; a second cancellation takes effect at once."""
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
    """Cancel what still runs, and wait until it has ended. Failures are dropped, also of tasks that ended before."""
    every = list(tasks)
    unfinished = [task for task in every if not task.done()]
    for task in unfinished:
        # A second cancellation would break off what the first one has it clean up.
        if not task.cancelling():
            task.cancel()
    running = (await asyncio.wait(unfinished, timeout=_END_S))[1] if unfinished else None
    for task in every:
        # Asked for, so that Python does not print it when the task is collected.
        _ = task.done() and (task.cancelled() or task.exception())
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

"""Threads for other people's code, which may never come back: nobody has to wait for them, and the process can end.

A call that nobody waits for any more goes on in its thread; the thread is counted as left behind, and another takes its
place, so that calls that hang never use up the room of those that do not. The standard library's pool has neither: its
threads are joined when the interpreter ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
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
        """Calls that still run though nobody waits for them."""
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

    def leave_behind(self) -> None:
        """Somebody has stopped to wait for a call that runs."""
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


class _Call(Future[Any]):
    def __init__(self, threads: DaemonThreads, call: Callable[[], Any]) -> None:
        super().__init__()
        self._threads = threads
        self._call: Callable[[], Any] | None = call
        self._is_left = False
        self._change = threading.Lock()

    def cancel(self) -> bool:
        """What runs cannot be stopped; whoever cancels it does not wait for it any more."""
        if super().cancel():
            return True
        with self._change:
            if self.running() and not self._is_left:
                self._is_left = True
                self._threads.leave_behind()
        return False

    def run(self) -> None:
        assert self._call is not None
        call, self._call = self._call, None
        if not self.set_running_or_notify_cancel():
            return
        try:
            outcome = call()
        except StopIteration as error:
            # A coroutine cannot be given one: whoever awaits the call would never hear of it.
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


_all: WeakSet[DaemonThreads] = WeakSet()


def count_left_behind() -> int:
    """Calls of this process that still run though nobody waits for them."""
    return sum(threads.num_left_behind for threads in list(_all))


def call_within(limit_s: float | None, call: Callable[[], T]) -> T:
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

"""Threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from tests.clock import HANG_S
from turnwise.infra.threads import DaemonThreads, call_with_timeout


def test_calls_return_and_raise_what_they_do() -> None:
    threads = DaemonThreads(2, "test")
    assert [future.result(HANG_S) for future in [threads.submit(pow, 2, n) for n in range(20)]] == [
        2**n for n in range(20)
    ]
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(HANG_S)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(print)


def test_calls_that_hang_are_left_behind_and_never_use_up_the_room() -> None:
    threads, gate = DaemonThreads(2, "test"), threading.Event()

    def hang() -> str:
        started.release()
        gate.wait()
        return "late"

    started = threading.Semaphore(0)
    for _ in range(5):
        hung: Future[Any] = threads.submit(hang)
        assert started.acquire(timeout=HANG_S)
        assert not hung.cancel()
    assert threads.num_left_behind == 5
    assert threads.submit(lambda: "through").result(HANG_S) == "through"
    gate.set()
    assert hung.result(HANG_S) == "late"


def test_a_call_that_comes_back_is_no_longer_counted() -> None:
    threads, gate, started = DaemonThreads(1, "test"), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        gate.wait()

    hung = threads.submit(hang)
    assert started.wait(HANG_S)
    hung.cancel()
    hung.cancel()
    assert threads.num_left_behind == 1
    gate.set()
    hung.result(HANG_S)
    assert threads.submit(lambda: threads.num_left_behind).result(HANG_S) == 0


def test_a_stop_iteration_reaches_whoever_awaits_it() -> None:
    """A coroutine cannot be given one, so that it would wait for ever."""

    def stop() -> None:
        raise StopIteration("here")

    async def run() -> None:
        await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(DaemonThreads(1, "test"), stop), HANG_S)

    with pytest.raises(RuntimeError, match="StopIteration: here"):
        asyncio.run(run())


def test_a_call_within_a_limit() -> None:
    gate = threading.Event()
    assert call_with_timeout(None, lambda: 1) == call_with_timeout(HANG_S, lambda: 1) == 1
    with pytest.raises(TimeoutError):
        call_with_timeout(0.01, gate.wait)
    gate.set()


@pytest.mark.slow
def test_the_process_ends_though_a_call_hangs() -> None:
    program = (
        "import threading\n"
        "from turnwise.infra.threads import DaemonThreads\n"
        "started = threading.Event()\n"
        "threads = DaemonThreads(1, 'test')\n"
        "threads.submit(lambda: (started.set(), threading.Event().wait()))\n"
        "started.wait()\n"
        "threads.shutdown()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=HANG_S, check=False).returncode == 0

"""Work that fails tells its own cause alone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine

import pytest

from tests.clock import HANG_S
from turnwise.infra.threads import end_tasks, run_async


async def fail() -> None:
    raise KeyError("mine")


def test_a_failure_does_not_begin_with_no_running_event_loop() -> None:
    with pytest.raises(KeyError, match="mine") as raised:
        run_async(fail())
    assert raised.value.__context__ is None


def test_it_also_works_where_a_loop_is_running() -> None:
    async def inside() -> None:
        with pytest.raises(KeyError, match="mine"):
            run_async(fail())

    asyncio.run(inside())


def run_as_a_notebook_does(work: Coroutine[object, object, None]) -> None:
    """Without the signal handler of `asyncio.run`: Ctrl-C raises KeyboardInterrupt wherever the main thread is."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


class Interrupted:
    """Work that presses Ctrl-C, and cleans up when it is cancelled."""

    def __init__(self) -> None:
        self.is_clean = False

    async def run(self) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(asyncio.Event().wait(), HANG_S)
        finally:
            await asyncio.sleep(0)
            self.clean_up()

    def clean_up(self) -> None:
        self.is_clean = True


class FailingCleanUp(Interrupted):
    def clean_up(self) -> None:
        raise OSError("the disk is full")


@pytest.mark.parametrize("outer", [run_as_a_notebook_does, asyncio.run])
def test_ctrl_c_under_a_running_loop_cancels_the_work_and_waits_for_its_clean_up(
    outer: Callable[[Coroutine[object, object, None]], None],
) -> None:
    work = Interrupted()

    async def inside() -> None:
        with pytest.raises(KeyboardInterrupt):
            run_async(work.run())
        assert work.is_clean
        raise KeyError("reached")

    with pytest.raises(KeyError, match="reached"):
        outer(inside())


def test_ctrl_c_under_a_running_loop_keeps_what_failed_in_the_clean_up() -> None:
    async def inside() -> None:
        with pytest.raises(KeyboardInterrupt) as raised:
            run_async(FailingCleanUp().run())
        assert isinstance(raised.value.__cause__, OSError)

    run_as_a_notebook_does(inside())


def test_ctrl_c_before_the_caller_waits_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        start(thread)
        caller = asyncio.current_task()
        while caller is not None and not caller.cancelling():
            time.sleep(0.001)

    async def inside() -> None:
        monkeypatch.setattr(threading.Thread, "start", start_late)
        with pytest.raises(KeyboardInterrupt):
            run_async(Interrupted().run())
        raise KeyError("reached")

    with pytest.raises(KeyError, match="reached"):
        asyncio.run(inside())


def test_a_task_that_failed_before_it_is_ended_is_not_told_by_python() -> None:
    told: list[object] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
        tasks = [asyncio.create_task(fail()), asyncio.create_task(asyncio.Event().wait())]
        while not tasks[0].done():
            await asyncio.sleep(0)
        await end_tasks(tasks)
        tasks.clear()
        gc.collect()

    asyncio.run(work())
    assert not told

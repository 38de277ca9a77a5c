"""Work that fails tells its own cause alone."""

from __future__ import annotations

import asyncio

import pytest

from turnwise.floor.async_calls import run_async


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

"""Who waits for whom can be asked from outside."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from tests.clock import HANG_S
from turnwise.floor import waits
from turnwise.floor.waits import find_waits, show_waits, waiting


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_PERIOD_S", 0.01)
    monkeypatch.setattr(waits, "_SHOWN_AFTER_S", 0.0)


def wait_for(path: Path, *, is_there: bool) -> list[dict[str, object]]:
    deadline_s = time.monotonic() + HANG_S
    while time.monotonic() < deadline_s:
        if path.exists() == is_there:
            return json.loads(path.read_text()) if is_there else []
        time.sleep(0.005)
    raise TimeoutError


def test_the_file_names_who_waits_for_whom_and_until_when(tmp_path: Path) -> None:
    path = tmp_path / "waiting.json"
    before_s = time.time()

    async def run() -> None:
        with show_waits(path):
            with waiting("the trainer", "experience of step 3", 60.0):
                (row,) = wait_for(path, is_there=True)
            assert (row["who"], row["for"], row["deadline_s"]) == ("the trainer", "experience of step 3", 60.0)
            assert before_s - 1 <= row["since"] <= time.time()  # type: ignore[operator]
            wait_for(path, is_there=False)

    asyncio.run(run())
    assert find_waits() == []


def block(path: Path) -> list[dict[str, object]]:
    """Code of somebody's own that does not give the event loop back."""
    return wait_for(path, is_there=True)


def test_code_that_blocks_the_event_loop_is_named_by_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_STALLED_AFTER_S", 0.05)

    async def run() -> dict[str, object]:
        with show_waits(tmp_path / "waiting.json"):
            return block(tmp_path / "waiting.json")[0]

    row = asyncio.run(run())
    assert row["who"] == "the event loop"
    assert "code that has not returned: " in str(row["for"])


def test_a_long_wait_is_told_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "_WARNED_AFTER_S", 0.02)

    async def run() -> None:
        with show_waits(tmp_path / "waiting.json"), waiting("the trainer", "experience", 60.0):
            deadline_s = time.monotonic() + HANG_S
            while "the trainer has been waiting" not in caplog.text and time.monotonic() < deadline_s:
                await asyncio.sleep(0.005)

    asyncio.run(run())
    assert "for experience" in caplog.text


def test_what_another_process_wrote_stays_while_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "waiting.json"
    alive = {"who": "the explorer", "for": "weights", "since": 1.0, "deadline_s": 9.0, "pid": os.getppid()}
    dead = {**alive, "pid": 2**22 + 7}
    path.write_text(json.dumps([alive, dead, "nonsense"]))

    async def run() -> None:
        with show_waits(path), waiting("the trainer", "experience", None):
            deadline_s = time.monotonic() + HANG_S
            while len(rows := json.loads(path.read_text())) != 2 or rows[1]["who"] != "the trainer":
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.005)

    asyncio.run(run())
    assert json.loads(path.read_text()) == [alive]


def test_a_wait_that_is_cancelled_is_over() -> None:
    async def run() -> None:
        async def wait() -> None:
            with waiting("me", "nothing", None):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert [wait.who for wait in find_waits()] == ["me"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert find_waits() == []

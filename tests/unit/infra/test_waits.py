"""Who waits for whom can be asked from outside."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from tests.clock import HANG_S
from turnwise.infra import wait_tracking as waits
from turnwise.infra.wait_tracking import list_waits, track_compute, waiting, write_waits_file


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
        with write_waits_file(path):
            with waiting("the trainer", "experience of step 3", 60.0):
                (row,) = wait_for(path, is_there=True)
            assert (row["who"], row["for"], row["deadline_s"]) == ("the trainer", "experience of step 3", 60.0)
            assert before_s - 1 <= row["since"] <= time.time()  # type: ignore[operator]
            wait_for(path, is_there=False)

    asyncio.run(run())
    assert list_waits() == []


def block(path: Path) -> list[dict[str, object]]:
    """Code of somebody's own that does not give the event loop back."""
    return wait_for(path, is_there=True)


def test_code_that_blocks_the_event_loop_is_named_by_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_STALLED_AFTER_S", 0.05)

    async def run() -> dict[str, object]:
        with write_waits_file(tmp_path / "waiting.json"):
            return block(tmp_path / "waiting.json")[0]

    row = asyncio.run(run())
    assert row["who"] == "the event loop"
    assert "code that has not returned: " in str(row["for"])


def test_a_long_wait_is_told_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "_WARNED_AFTER_S", 0.02)

    async def run() -> None:
        with write_waits_file(tmp_path / "waiting.json"), waiting("the trainer", "experience", 60.0):
            deadline_s = time.monotonic() + HANG_S
            while "the trainer has been waiting" not in caplog.text and time.monotonic() < deadline_s:
                await asyncio.sleep(0.005)

    asyncio.run(run())
    assert "for experience" in caplog.text


def test_a_long_update_is_shown_and_not_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "_STALLED_AFTER_S", 0.05)
    monkeypatch.setattr(waits, "_WARNED_AFTER_S", 0.05)
    path = tmp_path / "waiting.json"

    @track_compute("an update of the policy")
    def update() -> list[dict[str, object]]:
        rows = wait_for(path, is_there=True)
        time.sleep(0.2)  # several times as long as a wait may be untold
        return rows

    async def run() -> None:
        with write_waits_file(path):
            assert [(row["who"], row["for"]) for row in update()] == [("the event loop", "an update of the policy")]
            assert "has been waiting" not in caplog.text
            assert "code that has not returned" in str(block_again(path))

    asyncio.run(run())


def block_again(path: Path) -> object:
    """What the file says of the next one that blocks."""
    deadline_s = time.monotonic() + HANG_S
    while time.monotonic() < deadline_s:
        if path.exists() and "code that has not returned" in (text := path.read_text()):
            return text
        time.sleep(0.005)
    raise TimeoutError


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_clock_on_the_wall_that_jumps_changes_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, jump_s: float
) -> None:
    path, plain = tmp_path / "waiting.json", time.time

    async def run() -> None:
        with write_waits_file(path), waiting("the trainer", "experience", 60.0):
            monkeypatch.setattr(time, "time", lambda: plain() + jump_s)
            (row,) = wait_for(path, is_there=True)
            # As old as it is, by the clock that its reader has.
            assert abs(row["since"] - time.time()) < HANG_S  # type: ignore[operator]

    asyncio.run(run())
    assert "has been waiting" not in caplog.text


def test_what_another_process_wrote_stays_while_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "waiting.json"
    alive = {"who": "the explorer", "for": "weights", "since": 1.0, "deadline_s": 9.0, "pid": os.getppid()}
    dead = {**alive, "pid": 2**22 + 7}
    path.write_text(json.dumps([alive, dead, "nonsense"]))

    async def run() -> None:
        with write_waits_file(path), waiting("the trainer", "experience", None):
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
        assert [wait.who for wait in list_waits()] == ["me"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert list_waits() == []

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
    with show_waits(path):
        with waiting("the trainer", "experience of step 3", 60.0):
            (row,) = wait_for(path, is_there=True)
        assert (row["who"], row["for"], row["deadline_s"]) == ("the trainer", "experience of step 3", 60.0)
        assert before_s - 1 <= row["since"] <= time.time()  # type: ignore[operator]
        wait_for(path, is_there=False)
    assert find_waits() == []


def test_what_another_process_wrote_stays_while_it_lives(tmp_path: Path) -> None:
    path = tmp_path / "waiting.json"
    alive = {"who": "the explorer", "for": "weights", "since": 1.0, "deadline_s": 9.0, "pid": os.getppid()}
    dead = {**alive, "pid": 2**22 + 7}
    path.write_text(json.dumps([alive, dead, "nonsense"]))
    with show_waits(path), waiting("the trainer", "experience", None):
        deadline_s = time.monotonic() + HANG_S
        while len(rows := json.loads(path.read_text())) != 2 or rows[1]["who"] != "the trainer":
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
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

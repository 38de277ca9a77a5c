"""A run on a disk that gets full: a file system in memory over its folder, mounted for it alone, which has no room left
at random moments. Mounting is for the superuser.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.runs import HANG_S, Mode, commands, end_all, go_on, read_log, start, wait
from tests.chaos.trials import Trial

_ROOM_BYTES = 64 << 20
_LEFT_BYTES = (0, 4096, 32_768, 100_000)
"""From nothing at all to enough for a part of a checkpoint."""
_EVENTS = ("report.tensorboard=true",)
"""Written by another library, in a way of its own."""
_CAUSES = ("no space left", "disk is full", "disk i/o error")
"""As the system says it, and as SQLite does."""


class Disk:
    """A small file system that is mounted at a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, left_bytes: int) -> None:
        """Until so little is left. Whoever writes meanwhile may take it first, which is as good."""
        for _ in range(50):
            used = os.statvfs(self._folder)
            in_use_bytes = (used.f_blocks - used.f_bfree) * used.f_frsize
            # Of no size at all means without a limit.
            if self._resize(max(in_use_bytes + left_bytes, used.f_frsize)):
                return
        raise AssertionError(f"{self._folder} grows faster than it can be filled")

    def free(self) -> None:
        assert self._resize(_ROOM_BYTES)

    def _resize(self, size_bytes: int) -> bool:
        return _run("mount", "-o", f"remount,size={size_bytes}", str(self._folder)) is None


def why_no_disk(path: Path) -> str | None:
    """Why none can be mounted at a new folder; None where it can."""
    if os.geteuid() != 0:
        return "it takes the superuser"
    with _mounted(path) as failure:
        return failure


@contextmanager
def disk_at(folder: Path) -> Iterator[Disk]:
    with _mounted(folder) as failure:
        assert failure is None, failure
        yield Disk(folder)


@contextmanager
def _mounted(folder: Path) -> Iterator[str | None]:
    """Why it is not, or None."""
    folder.mkdir(exist_ok=True)
    failure = _run("mount", "-t", "tmpfs", "-o", f"size={_ROOM_BYTES},mode=700", "chaos", str(folder))
    try:
        yield failure
    finally:
        if failure is None:
            # Whoever has a file open there keeps it a moment longer.
            _run("umount", "--lazy", str(folder))


def _run(*command: str) -> str | None:
    """What it has to say where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit {done.returncode}"


def play_on_full_disk(trial: Trial) -> tuple[int, str | None]:
    """Up to three times there is no room. Each time whoever has to write says so in one message, or needs no more."""
    mode: Mode = trial.dice.choice(("serial", "two processes"))
    trial.quiet(mode)
    num_done = 0

    def again(number: int) -> subprocess.Popen[bytes]:
        return start(commands(trial.path, mode, extra=_EVENTS)[number], trial.log)

    with disk_at(trial.path) as disk:
        processes = [again(number) for number in range(len(commands(trial.path, mode)))]
        try:
            for _ in range(min(3, trial.at_most)):
                trial.wait_for_moment(trial.dice.choice(processes), mode)
                if all(process.poll() is not None for process in processes):
                    break
                said = len(read_log(trial.log))
                disk.fill(trial.dice.choice(_LEFT_BYTES))
                num_done += 1
                failed = [number for number in _wait_for_ends(trial, processes) if wait(processes[number]) != 0]
                disk.free()
                for number in failed:
                    _check_words(processes[number].returncode, read_log(trial.log)[said:])
                    processes[number] = again(number)
            go_on(processes, again, trial.log)
            assert trial.has_ended, f"no summary: {read_log(trial.log)[-2000:]}"
        finally:
            end_all(processes)
        return num_done, trial.find_losses(mode)


def _wait_for_ends(trial: Trial, processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Whose: one of them, or more where others have to write too before there is room again."""
    deadline_s = time.monotonic() + HANG_S
    while all(process.poll() is None for process in processes):
        assert time.monotonic() < deadline_s, f"nobody minds a full disk: {read_log(trial.log)[-2000:]}"
        time.sleep(0.02)
    if len(processes) > 1:
        time.sleep(trial.dice.uniform(0.0, 5.0))
    return [number for number, process in enumerate(processes) if process.poll() is not None]


def _check_words(code: int, told: str) -> None:
    """One message, with the cause in it."""
    assert code in (1, 2), f"exit {code}: {told[-3000:]}"
    assert "Traceback" not in told, told[-3000:]
    assert "turnwise: " in told, told[-3000:]
    assert any(cause in told.lower() for cause in _CAUSES), told[-3000:]

"""What else happens to runs: a full disk, files that cannot grow, a folder that nobody may write to, a slow disk, a
clock that jumps, a process that stands still, an environment without memory.

Each is done to runs of its own; a run that has to end because of it says so in one message, and goes on when it is
started again.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tests.chaos.full_disk import play_on_full_disk, why_no_disk
from tests.chaos.runs import (
    HANG_S,
    Mode,
    commands,
    end_all,
    find_unsound,
    finish,
    go_on,
    read_log,
    start,
    wait,
)
from tests.chaos.trials import Trial

_CAP_DAC_OVERRIDE, _PR_CAPBSET_DROP = 1, 24
_REFUSED = 2
"""The exit code of a command that was refused, or could not write."""
_LARGEST_BYTES = (0, 4096, 30_000)
_IN_PROCESSES = ("rollout.isolation={type: process}",)


def limit_files(trial: Trial) -> tuple[int, str | None]:
    """No file can grow any more (EFBIG)."""

    def limit(process: subprocess.Popen[bytes]) -> None:
        hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (trial.dice.choice(_LARGEST_BYTES), hard))

    return _hinder(trial, limit, lambda: None)


def fill_disk(trial: Trial) -> tuple[int, str | None]:
    """The disk of a run has no room left (ENOSPC). It takes a disk of its own, and who may not mount one is told."""
    if (why := why_no_disk(trial.path)) is not None:
        sys.stderr.write(f"full disk: no disk can be mounted here ({why}); the size of files is limited instead\n")
        return limit_files(trial)
    return play_on_full_disk(trial)


def forbid_writing(trial: Trial) -> tuple[int, str | None]:
    """The folders of a run become read-only while it works."""

    def forbid(_: subprocess.Popen[bytes]) -> None:
        for folder in _folders(trial.path):
            folder.chmod(0o555)

    def allow() -> None:
        for folder in _folders(trial.path):
            folder.chmod(0o700)

    return _hinder(trial, forbid, allow, before=_obey_modes if os.geteuid() == 0 else None)


def _folders(path: Path) -> Iterator[Path]:
    if path.exists():
        yield path
        yield from [folder for folder in path.rglob("*") if folder.is_dir()]


def _obey_modes() -> None:
    """In a new process of the superuser, to whom modes of files mean nothing otherwise."""
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


def _hinder(
    trial: Trial,
    hinder: Callable[[subprocess.Popen[bytes]], None],
    allow: Callable[[], None],
    *,
    before: Callable[[], None] | None = None,
) -> tuple[int, str | None]:
    """Up to three times it cannot write; each time it says why in one message, or needs no more to write."""
    num_done = 0
    trial.quiet("serial")
    process = trial.start(before=before)
    try:
        for _ in range(min(3, trial.at_most)):
            trial.wait_for_moment(process)
            if process.poll() is not None:
                break
            with suppress(ProcessLookupError):
                hinder(process)
                num_done += 1
            code = wait(process)
            allow()
            told = read_log(trial.log)
            assert code in (0, 1, _REFUSED), f"exit {code}: {told[-2000:]}"
            assert "Traceback" not in told, told[-3000:]
            assert code == 0 or "turnwise: " in told, told[-2000:]
            if code == 0 and trial.has_ended:
                break
            process = trial.start(before=before)
        if wait(process) != 0 or not trial.has_ended:
            process = trial.start(before=before)
            finish(process, trial.log)
    finally:
        allow()
        end_all([process])
    return num_done, trial.find_losses()


def slow_down_disk(trial: Trial) -> tuple[int, str | None]:
    """Every file takes up to a quarter of a second, for explorer and trainer or for both in one process."""
    mode: Mode = trial.dice.choice(("serial", "two processes"))
    return 1, _play_on(trial, mode, "slow-disk")


def set_clock(trial: Trial) -> tuple[int, str | None]:
    """The clock on the wall jumps by up to a day whenever it is looked at, and files have times of any day."""
    return 1, _play_on(trial, "two processes", "clock", meanwhile=lambda: _set_times(trial))


def _play_on(trial: Trial, mode: Mode, what: str, meanwhile: Callable[[], None] = lambda: None) -> str | None:
    trial.quiet(mode)
    seed = str(trial.dice.randrange(10**6))
    program = [sys.executable, "-m", "tests.chaos.launch", what, seed]
    processes = [start(words, trial.log) for words in commands(trial.path, mode, program=program)]
    try:
        deadline_s = time.monotonic() + HANG_S
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline_s:
            meanwhile()
            time.sleep(0.1)
        for process in processes:
            finish(process, trial.log)
    finally:
        end_all(processes)
    return trial.find_losses(mode)


def _set_times(trial: Trial) -> None:
    then_s = time.time() + trial.dice.uniform(-86_400, 86_400)
    for file in [*trial.path.glob("weights/*"), *trial.path.glob("*.jsonl"), *trial.path.glob("roles/*")]:
        with suppress(OSError):
            os.utime(file, (then_s, then_s))


def stand_still(trial: Trial) -> tuple[int, str | None]:
    """A process is stopped for a while. Its role stays its own: a second process is refused meanwhile."""
    mode: Mode = trial.dice.choice(("serial", "pipelined", "two processes"))
    log, num_done = trial.log, 0
    trial.quiet(mode)
    processes = [start(command, log) for command in commands(trial.path, mode)]
    try:
        for turn in range(min(3, trial.at_most)):
            number = trial.dice.randrange(len(processes))
            trial.wait_for_moment(processes[number], mode)
            if processes[number].poll() is not None:
                break
            processes[number].send_signal(signal.SIGSTOP)
            num_done += 1
            try:
                if turn == 0 and (trial.path / "roles").is_dir():
                    _try_to_take_over(trial, mode, number)
                time.sleep(trial.dice.uniform(0.2, 1.0) * trial.stop_s)
            finally:
                processes[number].send_signal(signal.SIGCONT)
        go_on(processes, lambda number: start(commands(trial.path, mode)[number], log), log)
    finally:
        end_all(processes)
    return num_done, trial.find_losses(mode)


def _try_to_take_over(trial: Trial, mode: Mode, number: int) -> None:
    second = trial.path.with_suffix(".second.log")
    code = wait(start(commands(trial.path, mode)[number], second))
    told = read_log(second)
    assert code == _REFUSED, f"a second process had exit code {code}: {told[-2000:]}"
    assert "has a running" in told, told[-2000:]


def starve_worker(trial: Trial) -> tuple[int, str | None]:
    """Processes of environments get no more memory, one after the other. Each costs an episode, and no run."""
    log, num_done = trial.log, 0
    trial.quiet("serial")
    process = start(commands(trial.path, "serial", extra=_IN_PROCESSES)[0], log)
    try:
        for _ in range(min(5, trial.at_most)):
            trial.wait_for_moment(process)
            workers = _find_workers(process.pid)
            if not workers:
                continue
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(victim := trial.dice.choice(workers), resource.RLIMIT_AS)
                resource.prlimit(victim, resource.RLIMIT_AS, (1 << 20, hard))
                num_done += 1
        finish(process, log)
    finally:
        end_all([process])
    return num_done, find_unsound(trial.path)


def _find_workers(pid: int) -> list[int]:
    """Processes that the server of forks of this one has made."""
    return [child for server in _children(pid) if _is_server(server) for child in _children(server)]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    return []


def _is_server(pid: int) -> bool:
    with suppress(OSError):
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


TROUBLES: Mapping[str, Callable[[Trial], tuple[int, str | None]]] = {
    "full disk": fill_disk,
    "file-size limit": limit_files,
    "read-only folder": forbid_writing,
    "slow disk": slow_down_disk,
    "clock jumps": set_clock,
    "stopped process": stand_still,
    "environment out of memory": starve_worker,
}

"""Runs of the tiny model as processes of their own, for whoever does something to them, and what must be there at their
end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from safetensors.numpy import load_file

from tests.small_run import SMALL_LAKE
from turnwise.report.run_dir import RunDirectory

Mode = Literal["serial", "pipelined", "two processes"]
MODES: tuple[Mode, ...] = ("serial", "pipelined", "two processes")
STEPS, GROUPS = 4, 3
HANG_S = 600.0
"""Until a process that does not end counts as hanging."""
_SETTINGS = [*SMALL_LAKE, f"learn.steps={STEPS}", f"sync.timeout_s={HANG_S}", "report.checkpoint_every=2"]
_EXTRA: dict[Mode, list[str]] = {
    "serial": [],
    "pipelined": ["loop.type=pipelined", "sync.max_staleness=0"],
    "two processes": [
        "buffer.type=sqlite",
        f"buffer.train_batch_size={GROUPS}",
        "buffer.unit=groups",
        "sync.method=checkpoint",
        "sync.max_staleness=1",
    ],
}
PLAIN = (sys.executable, "-m", "turnwise")
"""How the command is started; others put something around it."""


@dataclass
class Tally:
    """What was done to one kind of run, and what became of it."""

    kills: int = 0
    """How often something was done to it."""
    runs: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)


def commands(path: Path, mode: Mode, *, program: Sequence[str] = PLAIN, extra: Sequence[str] = ()) -> list[list[str]]:
    """One for each process of a run; the same again goes on with it."""
    turnwise = [*program, "train"]
    if mode != "two processes" and (path / "config.yaml").exists():
        return [[*turnwise, "--resume", str(path)]]
    new = [*turnwise, "frozenlake", *_SETTINGS, *_EXTRA[mode], *extra, "--run-dir", str(path)]
    return [new] if mode != "two processes" else [[*new, "run.mode=explore"], [*new, "run.mode=train"]]


def start(
    command: Sequence[str], log: Path, *, before: Callable[[], None] | None = None, **environment: str
) -> subprocess.Popen[bytes]:
    """What it says goes through a pipe into the log: limits of the process are not limits of its words."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", **environment}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=settings, preexec_fn=before
    )
    _writers[process.pid] = threading.Thread(target=_write_down, args=(process.stdout, log), daemon=True)
    _writers[process.pid].start()
    return process


_writers: dict[int, threading.Thread] = {}
"""Who writes down what a process says."""


def wait(process: subprocess.Popen[bytes]) -> int:
    """Until it has ended and all it said is in its log; returns its exit code."""
    code = process.wait(HANG_S)
    # Its children may have its pipe for a while.
    _writers[process.pid].join(1.0)
    return code


def _write_down(said: IO[bytes], log: Path) -> None:
    with log.open("ab") as out, said:
        while chunk := os.read(said.fileno(), 65536):
            out.write(chunk)
            out.flush()


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    """To its end, which must be a good one."""
    code = wait(process)
    assert code == 0, f"exit {code}: {read_log(log)[-2000:]}"
    assert "Traceback" not in read_log(log), read_log(log)[-2000:]


def read_log(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def log_of(path: Path) -> Path:
    return path.with_suffix(".log")


def play(path: Path, mode: Mode, *, extra: Sequence[str] = ()) -> float:
    """A whole run without any trouble; returns the seconds it took."""
    started_s, log = time.monotonic(), log_of(path)
    processes = [start(command, log) for command in commands(path, mode, extra=extra)]
    for process in processes:
        finish(process, log)
    return time.monotonic() - started_s


def end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def go_on(processes: list[subprocess.Popen[bytes]], again: Callable[[int], subprocess.Popen[bytes]], log: Path) -> None:
    """Every process to its end; one that did not end well is started once more, while others may wait for it."""
    left, started, deadline_s = set(range(len(processes))), set[int](), time.monotonic() + HANG_S
    while left:
        assert time.monotonic() < deadline_s, f"it hangs: {read_log(log)[-2000:]}"
        for number in [number for number in left if processes[number].poll() is not None]:
            if number in started:
                finish(processes[number], log)
            elif processes[number].returncode != 0:
                processes[number] = again(number)
                started.add(number)
                continue
            left.discard(number)
        time.sleep(0.02)


def is_killed_or_done(code: int) -> bool:
    """SIGTERM may come before there is anything to save, or after the last of it."""
    return code in (-signal.SIGKILL, -signal.SIGTERM, 143, 0)


def wait_for_moment(path: Path, process: subprocess.Popen[bytes], dice: random.Random, *, typical_s: float) -> None:
    """One time in five while it starts; otherwise when it has written a few more things, whatever they are."""
    if dice.random() < 0.2:
        time.sleep(dice.uniform(0.0, 0.5) * typical_s)
        return
    wanted, deadline_s = count_signs(path) + dice.randint(1, 8), time.monotonic() + HANG_S
    while process.poll() is None and count_signs(path) < wanted and time.monotonic() < deadline_s:
        time.sleep(0.005)


def count_signs(path: Path) -> int:
    """Episodes, steps, checkpoints finished or not, weights, stored rollouts: all that a run writes on its way."""
    files = [path / "metrics.jsonl", path / "explorer.jsonl", *path.glob("unfinished/*.jsonl")]
    names = [*path.glob("checkpoints/*"), *path.glob("checkpoints/.*"), *path.glob("weights/*")]
    return sum(_count_lines(file) for file in files) + len(names)


def _count_lines(file: Path) -> int:
    try:
        return file.read_bytes().count(b"\n")
    except OSError:
        return 0


# --- what must be there -----------------------------------------------------------------------------------------------


def find_losses(path: Path, quiet: Path, mode: Mode) -> str | None:
    """What differs from a run that nobody disturbed; None: nothing."""
    if (unsound := find_unsound(path)) is not None:
        return unsound
    if mode == "two processes":
        # An explorer that goes on in the middle of a rollout plays the rest of it in other batches: no equal bits.
        return _find_misused(path)
    name = f"checkpoints/step-{STEPS:06d}/policy/model.safetensors"
    ours, theirs = load_file(path / name), load_file(quiet / name)
    if any((ours[key] != theirs[key]).any() for key in theirs):
        return "other weights than those of an undisturbed run"
    return None


def find_unsound(path: Path) -> str | None:
    """What a finished run must have, whatever was played in it."""
    run = RunDirectory.open(path)
    if (steps := [row["step"] for row in run.read_metrics()]) != list(range(STEPS + 1)):
        return f"metrics have steps {steps}"
    if (told := run.read_summary().steps) != STEPS:
        return f"the summary says {told} steps"
    if leftovers := [file.name for file in run.checkpoints.glob(".*")]:
        return f"left behind: {leftovers}"
    if leftovers := [file.name for file in run.unfinished.glob("*.jsonl")]:
        return f"unfinished rollouts: {leftovers}"
    return None


def _find_misused(path: Path) -> str | None:
    """Every group is there once, and was learnt from once."""
    with sqlite3.connect(path / "experience.db") as db:
        num_groups = db.execute("SELECT COUNT(*) FROM groups").fetchone()[0]
        uses = db.execute("SELECT step, COUNT(*) FROM uses GROUP BY step").fetchall()
    expected = [(step, GROUPS) for step in range(1, STEPS + 1)]
    if num_groups != STEPS * GROUPS or uses != expected:
        return f"{num_groups} groups, learnt from {json.dumps(uses)}"
    return None

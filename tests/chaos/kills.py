"""Chaos: runs of the tiny model in every mode, killed at random moments, started again, and held against a quiet one.

`python -m tests.chaos.kills --kills 200 --seed 1 [--out FILE]` prints a table: how often each thing was done to each
mode, how many runs came to their end, and what was lost. A program of its own, because what is killed must be a
process. A seed says when is killed; the machine says what that hits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
_KILLS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
"""Mostly without a warning."""


@dataclass
class Tally:
    """What was done to one mode, and what became of it."""

    kills: int = 0
    runs: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many in all (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="when to kill (default: 0)")
    parser.add_argument("--out", type=Path, help="also write the table as Markdown")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        tallies = play_chaos(Path(folder), num_kills=options.kills, seed=options.seed)
    table = show(tallies)
    sys.stdout.write(f"{table}\n")
    if options.out is not None:
        options.out.write_text(table + "\n", encoding="utf-8")
    return 1 if any(tally.lost for tally in tallies.values()) else 0


def play_chaos(folder: Path, *, num_kills: int, seed: int, modes: Sequence[Mode] = MODES) -> dict[Mode, Tally]:
    """Kill processes of one mode after another until there were so many kills."""
    dice = random.Random(seed)
    quiet = {mode: _play(folder / f"quiet {mode}", mode) for mode in modes}
    tallies = {mode: Tally() for mode in modes}
    turn = 0
    while sum(tally.kills for tally in tallies.values()) < num_kills:
        mode = modes[turn % len(modes)]
        path = folder / f"{turn} {mode}"
        turn += 1
        tallies[mode].runs += 1
        left = num_kills - sum(tally.kills for tally in tallies.values())
        try:
            tallies[mode].kills += _disturb(path, mode, dice, at_most=left, typical_s=quiet[mode])
            if lost := find_losses(path, folder / f"quiet {mode}", mode):
                tallies[mode].lost.append(lost)
            else:
                tallies[mode].survived += 1
        except (AssertionError, subprocess.TimeoutExpired) as error:
            tallies[mode].lost.append(f"{type(error).__name__}: {error}")
        shutil.rmtree(path, ignore_errors=True)
        # An hour is long without a word.
        sys.stderr.write(f"run {turn}, {mode}: {tallies[mode]}\n")
    return tallies


def show(tallies: dict[Mode, Tally]) -> str:
    rows = [
        f"| {mode} | {tally.kills} | {tally.runs} | {tally.survived} | {len(tally.lost)} |"
        for mode, tally in tallies.items()
    ]
    losses = [f"\nlost ({mode}): {lost}" for mode, tally in tallies.items() for lost in tally.lost]
    return "\n".join(["| mode | kills | runs | survived | lost |", "|---|---|---|---|---|", *rows, *losses])


# --- processes --------------------------------------------------------------------------------------------------------


def _commands(path: Path, mode: Mode) -> list[list[str]]:
    """One for each process of a run; the same again goes on with it."""
    turnwise = [sys.executable, "-m", "turnwise", "train"]
    if mode != "two processes" and (path / "config.yaml").exists():
        return [[*turnwise, "--resume", str(path)]]
    new = [*turnwise, "frozenlake", *_SETTINGS, *_EXTRA[mode], "--run-dir", str(path)]
    return [new] if mode != "two processes" else [[*new, "run.mode=explore"], [*new, "run.mode=train"]]


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        )


def _finish(process: subprocess.Popen[bytes], log: Path) -> None:
    code = process.wait(HANG_S)
    assert code == 0, f"exit {code}: {log.read_text(errors='replace')[-2000:]}"
    assert "Traceback" not in log.read_text(errors="replace"), log.read_text(errors="replace")[-2000:]


def _play(path: Path, mode: Mode) -> float:
    """A whole run without any trouble; returns the seconds it took."""
    started_s, log = time.monotonic(), path.with_suffix(".log")
    processes = [_start(command, log) for command in _commands(path, mode)]
    for process in processes:
        _finish(process, log)
    return time.monotonic() - started_s


def _disturb(path: Path, mode: Mode, dice: random.Random, *, at_most: int, typical_s: float) -> int:
    """Up to five kills of a run, then to its end; returns how many hit a living process."""
    log, num_kills = path.with_suffix(".log"), 0
    processes = [_start(command, log) for command in _commands(path, mode)]
    try:
        for _ in range(min(5, at_most)):
            number = dice.randrange(len(processes))
            _wait_for_moment(path, processes[number], dice, typical_s=typical_s)
            if processes[number].poll() is None:
                processes[number].send_signal(dice.choice(_KILLS))
                num_kills += 1
                code = processes[number].wait(HANG_S)
                # SIGTERM may come before there is anything to save, or after the last of it.
                assert code in (-signal.SIGKILL, -signal.SIGTERM, 143, 0), log.read_text(errors="replace")[-2000:]
            if all(process.poll() == 0 for process in processes):
                break
            processes[number] = _start(_commands(path, mode)[number], log)
        for number, process in enumerate(processes):
            if process.wait(HANG_S) != 0:
                processes[number] = _start(_commands(path, mode)[number], log)
                _finish(processes[number], log)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return num_kills


def _wait_for_moment(path: Path, process: subprocess.Popen[bytes], dice: random.Random, *, typical_s: float) -> None:
    """One time in five while it starts; otherwise when it has written a few more things, whatever they are."""
    if dice.random() < 0.2:
        time.sleep(dice.uniform(0.0, 0.5) * typical_s)
        return
    wanted, deadline_s = _count_signs(path) + dice.randint(1, 8), time.monotonic() + HANG_S
    while process.poll() is None and _count_signs(path) < wanted and time.monotonic() < deadline_s:
        time.sleep(0.005)


def _count_signs(path: Path) -> int:
    """Episodes, steps, checkpoints finished or not, weights, stored rollouts: all that a run writes on its way."""
    files = [path / "metrics.jsonl", path / "explorer.jsonl", *path.glob("unfinished/*.jsonl")]
    names = [*path.glob("checkpoints/*"), *path.glob("checkpoints/.*"), *path.glob("weights/*")]
    return sum(_count_lines(file) for file in files) + len(names)


def _count_lines(file: Path) -> int:
    try:
        return file.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


# --- what must be there -----------------------------------------------------------------------------------------------


def find_losses(path: Path, quiet: Path, mode: Mode) -> str | None:
    """What differs from a run that nobody disturbed; None: nothing."""
    run = RunDirectory.open(path)
    if (steps := [row["step"] for row in run.read_metrics()]) != list(range(STEPS + 1)):
        return f"metrics have steps {steps}"
    if (told := run.read_summary().steps) != STEPS:
        return f"the summary says {told} steps"
    if leftovers := [file.name for file in run.checkpoints.glob(".*")]:
        return f"left behind: {leftovers}"
    if leftovers := [file.name for file in run.unfinished.glob("*.jsonl")]:
        return f"unfinished rollouts: {leftovers}"
    if mode == "two processes":
        # An explorer that goes on in the middle of a rollout plays the rest of it in other batches: no equal bits.
        return _find_misused(path)
    name = f"checkpoints/step-{STEPS:06d}/policy/model.safetensors"
    ours, theirs = load_file(path / name), load_file(quiet / name)
    if any((ours[key] != theirs[key]).any() for key in theirs):
        return "other weights than those of an undisturbed run"
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


if __name__ == "__main__":
    sys.exit(main())

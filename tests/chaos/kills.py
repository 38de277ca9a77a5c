"""Chaos: runs of the tiny model in every mode, killed at random moments or put under other troubles, started again, and
held against a quiet one.

`python -m tests.chaos.kills --kills 200 --seed 1 [--kinds NAME …] [--out FILE]` prints a table: how often each thing
was done, how many runs came to their end, and what was lost. Without `--kinds`, processes are killed; with `troubles`
they have full disks and the like. A program of its own, because what is killed must be a process. A seed says when
something is done; the machine says what that hits.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.pages import read_rows, show, write_page
from tests.chaos.runs import (
    MODES,
    Mode,
    Tally,
    commands,
    end_all,
    find_losses,
    go_on,
    is_killed_or_done,
    log_of,
    play,
    read_log,
    start,
    wait,
    wait_for_moment,
)
from tests.chaos.served import SERVED, Served
from tests.chaos.trials import Trial
from tests.chaos.troubles import TROUBLES

_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
"""Mostly without a warning."""
KILLS = (*MODES, SERVED)
KINDS = (*KILLS, *TROUBLES)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="how many in all (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="when to kill (default: 0)")
    parser.add_argument(
        "--kinds", nargs="+", default=["kills"], choices=["kills", "troubles", *KINDS], metavar="KIND",
        help=f"kills (the default), troubles, or some of: {', '.join(KINDS)}",
    )  # fmt: skip
    parser.add_argument("--stop-s", type=float, default=60.0, help="how long processes are stopped at most")
    parser.add_argument("--out", type=Path, help="also write the table as Markdown; rows of other kinds stay")
    options = parser.parse_args(words)
    kinds = [kind for name in options.kinds for kind in _named(name)]
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        tallies = play_chaos(
            Path(folder), num_kills=options.kills, seed=options.seed, kinds=kinds, stop_s=options.stop_s
        )
    sys.stdout.write(f"{show(tallies)}\n")
    if options.out is not None:
        write_page(options.out, {**read_rows(options.out), **tallies})
    return 1 if any(tally.lost for tally in tallies.values()) else 0


def _named(name: str) -> Sequence[str]:
    return {"kills": KILLS, "troubles": tuple(TROUBLES)}.get(name, (name,))


def play_chaos(
    folder: Path, *, num_kills: int, seed: int, kinds: Sequence[str] = KILLS, stop_s: float = 60.0
) -> Mapping[str, Tally]:
    """Disturb runs of one kind after another until it was done so many times."""
    dice = random.Random(seed)
    chaos = _Chaos(folder, dice, stop_s)
    tallies = {kind: Tally() for kind in kinds}
    turn = 0
    while (left := num_kills - sum(tally.kills for tally in tallies.values())) > 0:
        kind = kinds[turn % len(kinds)]
        turn += 1
        path = folder / f"{turn} {kind}"
        tally = tallies[kind]
        tally.runs += 1
        try:
            num_done, lost = chaos.disturb(kind, path, at_most=left)
            tally.kills += num_done
            tally.survived += lost is None
            tally.lost += [] if lost is None else [lost]
        except (AssertionError, subprocess.TimeoutExpired) as error:
            tally.kills += 1
            tally.lost.append(f"{type(error).__name__}: {error}")
        shutil.rmtree(path, ignore_errors=True)
        # An hour is long without a word.
        sys.stderr.write(f"run {turn}, {kind}: {tally}\n")
    return tallies


class _Chaos:
    """One run after another, each with something done to it; quiet runs to hold them against are made once."""

    def __init__(self, folder: Path, dice: random.Random, stop_s: float) -> None:
        self._folder = folder
        self._dice = dice
        self._stop_s = stop_s
        self._typical_s: dict[str, float] = {}

    def disturb(self, kind: str, path: Path, *, at_most: int) -> tuple[int, str | None]:
        """How often something was done, and what was lost by it."""
        if kind == SERVED:
            return Served(self._folder / "quiet served", self._dice).disturb(path, at_most=at_most)
        if kind in TROUBLES:
            trial = Trial(path, self._dice, at_most=at_most, stop_s=self._stop_s, quiet=self._quiet)
            return TROUBLES[kind](trial)
        mode: Mode = next(mode for mode in MODES if mode == kind)
        quiet, typical_s = self._quiet(mode)
        num_kills = _kill(path, mode, self._dice, at_most=at_most, typical_s=typical_s)
        return num_kills, find_losses(path, quiet, mode)

    def _quiet(self, mode: Mode) -> tuple[Path, float]:
        """A run that nobody disturbed, and the seconds it took."""
        path = self._folder / f"quiet {mode}"
        if mode not in self._typical_s:
            self._typical_s[mode] = play(path, mode)
        return path, self._typical_s[mode]


def _kill(path: Path, mode: Mode, dice: random.Random, *, at_most: int, typical_s: float) -> int:
    """Up to five kills of a run, then to its end; returns how many hit a living process."""
    log, num_kills = log_of(path), 0
    processes = [start(command, log) for command in commands(path, mode)]

    def again(number: int) -> subprocess.Popen[bytes]:
        return start(commands(path, mode)[number], log)

    try:
        for _ in range(min(5, at_most)):
            number = dice.randrange(len(processes))
            wait_for_moment(path, processes[number], dice, typical_s=typical_s)
            if processes[number].poll() is None:
                processes[number].send_signal(dice.choice(_SIGNALS))
                num_kills += 1
                assert is_killed_or_done(wait(processes[number])), read_log(log)[-2000:]
            if all(process.poll() == 0 for process in processes):
                break
            processes[number] = again(number)
        go_on(processes, again, log)
    finally:
        end_all(processes)
    return num_kills


if __name__ == "__main__":
    sys.exit(main())

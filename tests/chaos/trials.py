"""One run that something is done to, and the quiet one that it is held against."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.runs import Mode, commands, find_losses, log_of, start, wait_for_moment


@dataclass(frozen=True, slots=True)
class Trial:
    """One run that something is done to."""

    path: Path
    dice: random.Random
    at_most: int
    """How often."""
    stop_s: float
    quiet: Callable[[Mode], tuple[Path, float]]
    """A run that nobody disturbed, and the seconds it took. It is made when it is first asked for, so ask in time."""

    @property
    def log(self) -> Path:
        return log_of(self.path)

    def start(self, mode: Mode = "serial", number: int = 0, **given: object) -> subprocess.Popen[bytes]:
        return start(commands(self.path, mode)[number], self.log, **given)  # type: ignore[arg-type]

    def wait_for_moment(self, process: subprocess.Popen[bytes], mode: Mode = "serial") -> None:
        wait_for_moment(self.path, process, self.dice, typical_s=self.quiet(mode)[1])

    def find_losses(self, mode: Mode = "serial") -> str | None:
        return find_losses(self.path, self.quiet(mode)[0], mode)

    @property
    def has_ended(self) -> bool:
        return (self.path / "summary.json").exists()

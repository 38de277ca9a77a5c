"""Core-seconds of the tests by folder, beside their budgets: what `pytest --times FILE` measures, prints and writes.

Counted is the processor time of the test process and of the programs it has waited for, which a busy machine hardly
changes. A folder far above its budget is a warning and never a failure: machines differ.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from .budgets import read_budgets

_WARN_FACTOR, _WARN_S = 2, 10
_WARN_MINUTES = 20


def used_s() -> float:
    """Processor time of this process and of its ended children."""
    return sum(os.times()[:4])


def folder_of(test: str) -> str:
    """`tests/unit/credit/test_gae.py::test_x` is in `unit/credit`, `tests/flow/test_y.py` in `flow`."""
    folders = Path(test.partition("::")[0]).parent.parts[1:]
    return "/".join(folders[: 2 if folders[:1] == ("unit",) else 1])


class CoreSeconds:
    """Sums by folder, in the process that collects the reports of all others."""

    def __init__(self) -> None:
        self.by_folder: dict[str, float] = defaultdict(float)
        self._started_s = time.monotonic()

    def add(self, test: str, seconds: float) -> None:
        self.by_folder[folder_of(test)] += seconds

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        rounded = {folder: round(seconds, 1) for folder, seconds in sorted(self.by_folder.items())}
        file.write_text(json.dumps(rounded, indent=2) + "\n", "utf-8")

    def format(self) -> list[str]:
        minutes = (time.monotonic() - self._started_s) / 60
        total = f"{sum(self.by_folder.values()):.0f} core-seconds in {minutes:.1f} minutes"
        too_long = f"WARNING: {total} is above {_WARN_MINUTES} minutes." if minutes > _WARN_MINUTES else total
        return [*format_table(self.by_folder, read_budgets()["core_seconds"]), too_long]


def format_table(by_folder: Mapping[str, float], budgets: Mapping[str, int]) -> list[str]:
    """A line per folder, the costliest first; a warning where one is far above its budget."""
    lines = [f"{'folder':24} {'core-s':>8} {'budget':>8}"]
    for folder, seconds in sorted(by_folder.items(), key=lambda item: -item[1]):
        budget = budgets.get(folder)
        line = f"{folder or 'tests':24} {seconds:8.1f} {'-' if budget is None else budget:>8}"
        is_above = budget is not None and seconds > budget * _WARN_FACTOR + _WARN_S
        lines.append(f"{line}  WARNING: far above its budget in tests/budgets.json" if is_above else line)
    return lines

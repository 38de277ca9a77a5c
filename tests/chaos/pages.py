"""The table of tried, survived and lost: printed, and kept in a page whose other rows stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.runs import Tally
from turnwise.infra.atomic_files import atomic_write

_HEAD = ("| kind | tried | runs | survived | lost |", "|---|---|---|---|---|")
_ROW = re.compile(r"\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")
_INTRO = """\
# Kills, full disks and other troubles

Written by `python -m tests.chaos.kills` (`make chaos`): what was done to runs of the tiny model at random moments, and
what was lost by it. [What is promised, and how it is tried](../chaos.md).
"""


def show(tallies: Mapping[str, Tally]) -> str:
    rows = [
        f"| {kind} | {tally.kills} | {tally.runs} | {tally.survived} | {len(tally.lost)} |"
        for kind, tally in tallies.items()
    ]
    losses = [f"\nlost ({kind}): {lost}" for kind, tally in tallies.items() for lost in tally.lost]
    return "\n".join([*_HEAD, *rows, *losses])


def write_page(page: Path, tallies: Mapping[str, Tally]) -> None:
    atomic_write(page, f"{_INTRO}\n{show(tallies)}\n")


def read_rows(page: Path) -> dict[str, Tally]:
    """What an earlier chaos has written there; what it lost is known by its number alone."""
    if not page.exists():
        return {}
    found = (_ROW.fullmatch(line) for line in page.read_text(encoding="utf-8").splitlines())
    return {
        row[1]: Tally(kills=int(row[2]), runs=int(row[3]), survived=int(row[4]), lost=["as told then"] * int(row[5]))
        for row in found
        if row is not None
    }

"""The short version of `make chaos`: a few kills and troubles of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kills import play_chaos, show
from .pages import read_rows, write_page
from .runs import Tally


def nightly(*kinds: str) -> list[object]:
    return [pytest.param(kind, marks=pytest.mark.nightly) for kind in kinds]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two processes", *nightly("serial", "served")])
def test_nothing_is_lost_by_kills_at_random_moments(tmp_path: Path, kind: str) -> None:
    (tally,) = play_chaos(tmp_path, num_kills=2, seed=3, kinds=(kind,)).values()
    assert (tally.kills, tally.lost) == (2, [])
    assert tally.survived == tally.runs > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "full disk",
        *nightly(
            "file-size limit",
            "read-only folder",
            "slow disk",
            "clock jumps",
            "stopped process",
            "environment out of memory",
        ),
    ],
)
def test_nothing_is_lost_by_other_troubles(tmp_path: Path, kind: str) -> None:
    (tally,) = play_chaos(tmp_path, num_kills=1, seed=5, kinds=(kind,), stop_s=2.0).values()
    assert tally.lost == []
    assert tally.survived == tally.runs > 0


def test_the_table_names_what_was_lost_and_keeps_rows_of_other_kinds(tmp_path: Path) -> None:
    lost = {"serial": Tally(kills=3, runs=2, survived=1, lost=["other weights"])}
    told = show(lost)
    assert "| serial | 3 | 2 | 1 | 1 |" in told
    assert "lost (serial): other weights" in told
    page = tmp_path / "page.md"
    write_page(page, {**read_rows(page), **lost, "full disk": Tally(kills=1, runs=1)})
    write_page(page, {**read_rows(page), "serial": Tally(kills=5, runs=4, survived=4)})
    assert "| serial | 5 | 4 | 4 | 0 |" in page.read_text()
    assert "| full disk | 1 | 1 | 0 | 0 |" in page.read_text()

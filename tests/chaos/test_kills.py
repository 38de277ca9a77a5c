"""The short version of `make chaos`: a few kills of a serial run and of two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kills import Mode, Tally, play_chaos, show

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mode", ["serial", "two processes"])
def test_nothing_is_lost_by_kills_at_random_moments(tmp_path: Path, mode: Mode) -> None:
    (tally,) = play_chaos(tmp_path, num_kills=2, seed=3, modes=(mode,)).values()
    assert (tally.kills, tally.lost) == (2, [])
    assert tally.survived == tally.runs > 0


def test_the_table_names_what_was_lost() -> None:
    told = show({"serial": Tally(kills=3, runs=2, survived=1, lost=["other weights"])})
    assert "| serial | 3 | 2 | 1 | 1 |" in told
    assert "lost (serial): other weights" in told

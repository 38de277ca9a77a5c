"""A report has whole groups of episodes inside, from the first step to the last, and as many as were asked for."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from turnwise.view.report_file import write_report
from turnwise.view.server import RunCollection

from .made_run import make_run

SIBLINGS = 4


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> RunCollection:
    """A run of 640 episodes: more than a page of the list can hold."""
    return RunCollection([make_run(tmp_path_factory.mktemp("runs") / "run", steps=5, groups=32, siblings=SIBLINGS)])


def told_in(report: str) -> dict[str, Any]:
    """What the page is told of episodes."""
    found = re.search(r'id="embedded">(.*?)</script>', report)
    assert found is not None
    answers = json.loads(found[1])
    assert sum(key.startswith('["episode",') for key in answers) == answers['["episodes",[["run","run"]]]']["total"]
    return answers['["episodes",[["run","run"]]]']


def test_episodes_are_spread_over_the_whole_run(shelf: RunCollection) -> None:
    told = told_in(write_report(shelf, "run", num_episodes=40))
    steps = [row["step"] for row in told["episodes"]]
    assert {step: steps.count(step) for step in steps} == dict.fromkeys((5, 4, 3, 2, 1), 2 * SIBLINGS)
    # Nobody reads files for a report that has been written.
    assert told["num_files_left"] == 0


def test_a_report_without_episodes_has_none(shelf: RunCollection) -> None:
    told = told_in(write_report(shelf, "run", num_episodes=0))
    assert (told["total"], told["episodes"]) == (0, [])

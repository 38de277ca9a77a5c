"""A task that two policies played, as `turnwise compare` links it: both plays side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.view.made_run import REPLIES, make_run
from turnwise.view.server import ViewServer

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.xdist_group("ui")]


def test_both_plays_of_a_task_stand_side_by_side(
    tmp_path: Path, serve: Callable[..., ViewServer], open_page: Callable[..., Any]
) -> None:
    # The first replies are the same words in other tokens, as of two tokenizers.
    for name, step, replies in (("one", 1, REPLIES), ("other", 3, (REPLIES[0], "<answer>Left</answer>"))):
        run = make_run(tmp_path / name, siblings=2, replies=replies)
        folder = run / "evals" / "late"
        folder.mkdir(parents=True)
        (folder / "eval.json").write_text(json.dumps({"step": step}))
        rows = [json.loads(line) for line in (run / "trajectories" / f"step-{step:06d}.jsonl").read_text().splitlines()]
        for row in rows:
            row["task"]["seed"] = 7
        (folder / "step-000000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.rmtree(tmp_path / "other" / "trajectories")
    server = serve(tmp_path)
    page = open_page(server.address)
    link = "#/task?task=frozen_lake%2Ftrain%2F7&first=one&first_eval=late&second=other&second_eval=late"
    page.goto(f"http://127.0.0.1:{server.port}/{link}")
    page.wait_for_selector(".pairing.differs")
    assert page.inner_text("h1") == "frozen_lake/train/7"
    assert page.locator(".pairing.head b").all_inner_texts() == [
        "1/frozen_lake/train/100/0",
        "3/frozen_lake/train/300/0",
    ]
    assert page.locator("svg.grid").count() == 4
    assert page.locator(".pairing.same").evaluate_all("(rows) => rows.map((row) => row.dataset.turn)") == ["0"]
    assert page.locator(".pairing.differs").evaluate_all("(rows) => rows.map((row) => row.dataset.turn)") == ["1"]
    page.select_option("select[aria-label='Play of the first']", "1")
    assert page.locator(".pairing.head b").first.inner_text() == "1/frozen_lake/train/100/1"

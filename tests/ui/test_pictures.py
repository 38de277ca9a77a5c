"""The pictures of the documentation: made from runs that really trained, by the browser that tests the page.

`TURNWISE_PICTURES=docs/pictures TURNWISE_PICTURE_RUNS=FOLDER pytest tests/ui/test_pictures.py` writes them anew from
two runs in FOLDER that have the names below; without it short ones are trained, and the pictures are thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.small_run import without_plots
from turnwise.run.api import train
from turnwise.view.server import ViewServer

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.xdist_group("ui")]

ALONE, IN_GROUPS = "frozenlake-seed-0", "grpo-seed-1"
SHORT = ["learn.steps=2", "rollout.groups=16", "eval.episodes=20", "report.tensorboard=false", "warm_start.steps=30"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes on the same lake."""
    if given := os.environ.get("TURNWISE_PICTURE_RUNS"):
        return Path(given)
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        for name in (ALONE, IN_GROUPS):
            recipe, _, seed = name.split("-")
            train(recipe, [*SHORT, f"run.seed={seed}"], run_dir=folder / name)
    return folder


VIEWS = {
    "runs": ("runs", "tr[data-run]"),
    "curves": (f"curves?runs={ALONE},{IN_GROUPS}", ".chart canvas"),
    "episodes": (f"episodes?run={IN_GROUPS}&is_eval=0", "tr[data-episode]"),
    "system": (f"system?run={ALONE}", "dl"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_of_a_trained_run_is_painted(
    runs: Path,
    tmp_path: Path,
    serve: Callable[..., ViewServer],
    open_page: Callable[..., Any],
    scheme: str,
) -> None:
    folder = Path(os.environ.get("TURNWISE_PICTURES") or tmp_path)
    server = serve(runs)
    page = open_page(server.address, scheme=scheme)
    for name, (view, selector) in VIEWS.items():
        page.goto(f"http://127.0.0.1:{server.port}/#/{view}")
        page.wait_for_selector(selector)
        page.wait_for_timeout(500)
        page.screenshot(path=folder / f"{name}-{scheme}.png")
    open_first(page, server, ALONE, "success=1&sort=turns")
    page.locator(".tok.sampled").nth(3).hover()
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"tokens-{scheme}.png")
    open_first(page, server, IN_GROUPS, "success=1&sort=turns")
    page.locator("button[data-sibling]").first.click()
    page.wait_for_selector(".pairing")
    page.wait_for_timeout(600)
    page.screenshot(path=folder / f"siblings-{scheme}.png")
    assert all((folder / f"{name}-{scheme}.png").stat().st_size > 10_000 for name in (*VIEWS, "tokens", "siblings"))


def open_first(page: Any, server: ViewServer, run: str, asked: str) -> None:
    page.goto(f"http://127.0.0.1:{server.port}/#/episodes?run={run}&is_eval=0&{asked}")
    page.locator("tr[data-episode] a").first.click()
    page.wait_for_selector("table.credit")

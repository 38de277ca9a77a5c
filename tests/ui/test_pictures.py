"""The pictures of the documentation: made from a run that really trained, by the browser that tests the page.

`TURNWISE_PICTURES=docs/pictures make test-ui` writes them anew; without it they are made and thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.small_run import without_plots
from turnwise.app.run import train
from turnwise.view.server import ViewServer

pytestmark = [pytest.mark.ui, pytest.mark.slow]

STEPS = os.environ.get("TURNWISE_PICTURE_STEPS", "3")
SHORT = [f"learn.steps={STEPS}", "rollout.groups=8", "rollout.group_size=4", "eval.episodes=40", "eval.every=2"]
SHORT += ["report.trajectories_per_step=32", "report.tensorboard=false", "warm_start.steps=30"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recipes on the same lake."""
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        for recipe, seed in (("grpo", 0), ("grpo", 1), ("bi_level", 0)):
            train(recipe, [*SHORT, f"run.seed={seed}"], run_dir=folder / f"{recipe}-seed-{seed}")
    return folder


VIEWS = {
    "runs": ("runs", "tr[data-run]"),
    "curves": ("curves?runs=grpo-seed-0,grpo-seed-1,bi_level-seed-0", ".chart canvas"),
    "episodes": ("episodes?run=bi_level-seed-0&is_eval=0", "tr[data-episode]"),
    "system": ("system?run=bi_level-seed-0", "dl"),
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
    page.goto(f"http://127.0.0.1:{server.port}/#/episodes?run=bi_level-seed-0&is_eval=0&success=1&turns_from=3")
    page.locator("tr[data-episode] a").first.click()
    page.wait_for_selector("table.credit")
    page.locator(".tok.sampled").nth(3).hover()
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"tokens-{scheme}.png")
    page.locator("button[data-sibling]").first.click()
    page.wait_for_selector(".pairing")
    page.wait_for_timeout(600)
    page.screenshot(path=folder / f"siblings-{scheme}.png")
    assert all((folder / f"{name}-{scheme}.png").stat().st_size > 10_000 for name in (*VIEWS, "tokens", "siblings"))

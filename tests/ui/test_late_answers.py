"""Answers that come late, out of order or not at all: the page shows what was asked last, and says what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clock import HANG_S
from tests.unit.view.made_run import make_run
from turnwise.view.server import ViewServer

from .test_page import address, wait_until

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.xdist_group("ui")]
Open = Callable[..., Any]
Serve = Callable[..., ViewServer]


class Held:
    """Questions whose answers wait for the test."""

    def __init__(self, page: Any, part: str, **changed: object) -> None:
        """Those with `part` in their address; `changed` replaces what the server says."""
        self._page = page
        self._part = part
        self._changed = changed
        self._routes: list[Any] = []
        self.num_asked = 0
        page.route(lambda url: part in url, self._hold)

    def _hold(self, route: Any) -> None:
        self.num_asked += 1
        self._routes.append(route)

    def wait(self) -> None:
        """Until somebody has asked."""
        deadline_s = time.monotonic() + HANG_S
        while not self._routes:
            assert time.monotonic() < deadline_s, f"nobody has asked for {self._part}"
            self._page.wait_for_timeout(20)

    def let_go(self) -> None:
        """Answer the oldest of them; afterwards the page has heard it."""
        with self._page.expect_response(lambda reply: self._part in reply.url) as heard:
            route = self._routes.pop(0)
            route.fulfill(json={**route.fetch().json(), **self._changed})
        heard.value.finished()
        # An answer that was asked for later has come: whatever the first one does, it has done.
        self._page.evaluate("fetch('page/main.js').then((reply) => reply.text())")


def place(page: Any) -> str:
    return page.evaluate("decodeURIComponent(location.hash)")


def test_credit_of_an_episode_that_was_left_does_not_take_the_address_back(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    make_run(tmp_path / "run")
    server = serve(tmp_path)
    page = open_page(server.address)
    credit = Held(page, "api/credit")
    page.goto(address(server, "episodes?run=run"))
    page.wait_for_selector("tr[data-episode]")
    listed = page.locator("tr[data-episode]").evaluate_all("(rows) => rows.map((row) => row.dataset.episode)")
    page.keyboard.press("Enter")
    credit.wait()
    page.keyboard.press("j")
    wait_until(page, f"document.querySelector('h1')?.textContent === '{listed[1]}'")
    credit.let_go()
    assert f"id={listed[1]}" in place(page)
    credit.let_go()
    page.wait_for_selector("table.credit")
    # The view that is shown still writes down where it is.
    page.keyboard.press("c")
    assert f"id={listed[1]}&colour=mask" in place(page)


def test_what_a_view_draws_while_another_is_being_opened_does_not_take_the_address_back(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    make_run(tmp_path / "run")
    server = serve(tmp_path)
    page = open_page(server.address)
    page.goto(address(server, "episode?run=run&step=2&id=2/frozen_lake/train/200/1"))
    page.wait_for_selector("table.credit")
    # In one go: the browser tells of a new address only afterwards.
    page.evaluate(
        "location.hash = '#/system?run=run';"
        "document.querySelector('select[name=colour]').dispatchEvent(new Event('change'));"
    )
    page.wait_for_selector("dl")
    assert place(page) == "#/system?run=run"


def test_an_older_answer_does_not_replace_a_newer_one(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run", groups=20)
    server = serve(tmp_path)
    page = open_page(server.address)
    page.goto(address(server, "episodes?run=run"))
    page.wait_for_selector("tr[data-episode]")
    older = Held(page, "success=0")
    page.select_option("select[name=success]", "0")
    older.wait()
    page.select_option("select[name=success]", "1")
    wait_until(page, "document.querySelector('.pager').textContent.includes('of 100')")
    older.let_go()
    assert "of 100" in page.inner_text(".pager")
    assert "success=1" in place(page)


def test_an_answer_that_comes_while_a_filter_changes_does_not_undo_the_change(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    make_run(tmp_path / "run", groups=20)
    server = serve(tmp_path)
    page = open_page(server.address)
    page.goto(address(server, "episodes?run=run"))
    page.wait_for_selector("tr[data-episode]")
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now() + 1000"))
    older = Held(page, "success=0")
    page.select_option("select[name=success]", "0")
    page.clock.run_for(200)
    older.wait()
    page.select_option("select[name=success]", "1")
    older.let_go()
    page.clock.run_for(200)
    wait_until(page, "document.querySelector('.pager').textContent.includes('of 100')")


def test_a_list_that_was_left_asks_no_more_and_leaves_the_address_alone(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    make_run(tmp_path / "run")
    server = serve(tmp_path)
    page = open_page(server.address)
    page.clock.install()
    lists = Held(page, "api/episodes", num_files_left=1)
    page.goto(address(server, "episodes?run=run"))
    lists.wait()
    lists.let_go()
    page.wait_for_selector("tr[data-episode]")
    lists.wait()
    page.keyboard.press("4")
    page.wait_for_selector("dl")
    lists.let_go()
    assert place(page).startswith("#/system")
    asked = lists.num_asked
    page.clock.run_for(2000)
    page.evaluate("fetch('page/main.js').then((reply) => reply.text())")
    assert lists.num_asked == asked


@pytest.mark.parametrize("given", ["x", "9" * 25])
def test_a_filter_that_is_no_number_is_refused_in_words_and_can_be_mended(
    tmp_path: Path, serve: Serve, open_page: Open, given: str
) -> None:
    make_run(tmp_path / "run")
    server = serve(tmp_path)
    page = open_page(server.address, is_refused=True)
    page.goto(address(server, "episodes?run=run"))
    page.wait_for_selector("tr[data-episode]")
    page.fill("input[name=step_from]", given)
    page.wait_for_selector(".pager .problem")
    assert page.inner_text(".pager .problem") == f"step_from: '{given}' given; expected a number."
    page.fill("input[name=step_from]", "3")
    wait_until(page, "document.querySelector('.pager').textContent.includes('of 4')")
    assert page.locator(".problem:visible").count() == 0


def test_a_run_that_was_removed_is_named_and_the_server_is_not_called_gone(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    runs = tmp_path / "runs"
    run = make_run(runs / "run")
    make_run(runs / "other")
    server = serve(runs)
    page = open_page(server.address, is_refused=True)
    with page.expect_response(lambda reply: "api/changes" in reply.url):
        page.goto(address(server, "system?run=run"))
    page.wait_for_selector("dl")
    run.rename(tmp_path / "removed")
    page.wait_for_selector("main > .problem:visible")
    assert "there is no run 'run' here" in page.inner_text("main > .problem")
    assert page.inner_text(".pulse") == ""
    (tmp_path / "removed").rename(run)
    page.wait_for_selector("main > .problem", state="hidden")


def test_what_a_click_did_not_get_is_told(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run")
    server = serve(tmp_path)
    page = open_page(server.address, is_refused=True)
    page.goto(address(server, "curves?runs=run"))
    page.wait_for_selector("canvas")
    page.route("**/api/metrics*", lambda route: route.fulfill(status=404, json={"error": "the disk is gone"}))
    page.select_option("select[aria-label='Add a metric']", index=1)
    page.wait_for_selector("main > .problem:visible")
    assert page.inner_text("main > .problem") == "the disk is gone"

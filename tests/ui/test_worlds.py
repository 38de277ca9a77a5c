"""Worlds as a person would want them: a shop, a household, tool calls folded; what is not understood stays text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from tests.unit.view.made_run import make_run
from turnwise.view.server import ViewServer

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.xdist_group("ui")]
Open = Callable[..., Any]
Serve = Callable[..., ViewServer]

EPISODE = "episode?run=run&step=2&id=2/frozen_lake/train/200/1"


def retell(run: Path, world: str, turns: Sequence[dict[str, Any]], final: str = "") -> None:
    """The episodes of a made run, in another world."""
    config = (run / "config.yaml").read_text() + f"mix: {{frozen_lake: {{env: {{type: {world}}}}}}}\n"
    (run / "config.yaml").write_text(config)
    for file in (run / "trajectories").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["turns"] = [{**row["turns"][0], **turn, "index": index} for index, turn in enumerate(turns)]
            row["final_observation"] = final
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def play_by_oracle(name: str, seed: int) -> tuple[list[dict[str, Any]], str]:
    env: Any = tw.make_env(name)
    text, turns, is_done = env.reset(seed=seed), [], False
    while not is_done:
        action = env.oracle()
        turn = {"observation": text, "response_text": action, "actions": [action]}
        text, _, is_done, info = env.step(action)
        turns.append(turn | {"info": {"clickables": info["clickables"]} if "clickables" in info else {}})
    return turns, text


def show(serve: Serve, open_page: Open, run: Path, **look: Any) -> Any:
    server = serve(run)
    page = open_page(server.address, **look)
    page.goto(f"http://127.0.0.1:{server.port}/#/{EPISODE}")
    page.wait_for_selector("article.turn.last")
    return page


def test_a_shop_is_drawn_page_by_page(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    turns, final = play_by_oracle("webshop", 7)
    retell(run, "webshop", turns, final)
    page = show(serve, open_page, run)
    kinds = page.evaluate("[...document.querySelectorAll('.shop')].map((shop) => shop.dataset.page)")
    assert kinds == ["search", "results", "product", "product", "product", "bought"]
    assert page.locator(".products li").count() == 10
    assert page.locator(".products li").first.inner_text().startswith("P360")
    groups = page.locator(".shop").nth(4).locator(".options").all_inner_texts()
    assert [group.split() for group in groups] == [
        ["color", "red", "brown"],
        ["size", "small", "medium", "large", "x-large"],
    ]
    assert page.locator(".shop").nth(2).locator(".pill.chosen").count() == 0
    assert page.locator(".shop").nth(4).locator(".pill.chosen").all_inner_texts() == ["red", "medium"]
    assert "score 1.0" in page.locator(".shop").last.inner_text()


def test_a_household_is_drawn_as_far_as_it_was_seen(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    turns, final = play_by_oracle("alfworld", 3)
    retell(run, "alfworld", turns, final)
    page = show(serve, open_page, run)
    rooms = page.locator(".household")
    assert rooms.count() == len(turns) + 1
    assert rooms.first.locator(".piece").count() == 8
    assert "heat some mug" in rooms.first.locator(".wish").inner_text()
    assert rooms.first.locator(".thing").count() == 0
    # Having been at the countertop and taken the mug: it is in the hand, and the rest lies there.
    held = rooms.nth(2)
    assert "mug 1" in held.locator(".hand").inner_text()
    assert held.locator("[data-piece='countertop 1'] .thing").all_inner_texts() == ["fork 1", "spatula 1"]
    assert held.locator(".piece.here b").inner_text().startswith("countertop 1")
    assert rooms.nth(3).locator(".piece.shut").get_attribute("data-piece") == "microwave 1"
    last = rooms.last
    assert last.locator("[data-piece='cabinet 1'] .thing").all_inner_texts()[-1] == "mug 1 hot"
    assert "nothing" in last.locator(".hand").inner_text()


def test_tool_calls_and_their_results_are_folded(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = make_run(tmp_path / "run")
    call = 'I look. <tool_call>{"name": "look_up", "arguments": {"city": "<img src=x onerror=alert(1)>"}}</tool_call>'
    turns = [
        {"observation": "Where is it warmer?", "response_text": call, "actions": []},
        {"observation": json.dumps({"bern": "<b>17</b>" * 40}), "response_text": "In Bern.", "actions": []},
    ]
    retell(run, "tools", turns)
    words = {f"{call} {number}": number for number in range(300)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": f"{call} 0"}
    (run / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    page = show(serve, open_page, run)
    assert page.locator("details.call.result summary").first.inner_text().startswith("result of look_up: ")
    assert page.locator("details.call:not(.result) summary").first.inner_text() == "calls look_up"
    assert page.locator("details.call[open]").count() == 0
    page.locator("h1").click()
    page.keyboard.press("ArrowRight")
    assert page.locator("details.call[open] .tok.chosen").count() == 1
    assert page.evaluate("document.querySelectorAll('main :is(script, img, iframe, b > b)').length") == 0


def test_hostile_worlds_are_text_and_fit_on_a_telephone(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run, bad = make_run(tmp_path / "run"), "<img src=x onerror=alert(1)>" * 12
    wish = f"Instruction: [SEP] {bad}"
    pages = [
        f"WebShop [SEP] {wish} [SEP] Search",
        f"{wish} [SEP] Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] {bad} [SEP] {bad} [SEP] $1",
        f"{wish} [SEP] < Prev [SEP] {bad} [SEP] {bad} [SEP] {bad} [SEP] Price: {bad} [SEP] Buy Now",
        f"{wish} [SEP] Back to Search [SEP] < Prev [SEP] {bad}",
        f"Thank you for shopping with us! [SEP] asin [SEP] {bad} [SEP] options [SEP] {bad}",
        "nothing of a shop",
    ]
    retell(run, "webshop", [{"observation": text, "actions": [f"click[{bad}]", "search["]} for text in pages], bad)
    page = show(serve, open_page, run, width=390, height=844)
    assert page.locator(".shop").count() == 5
    assert page.evaluate("document.querySelectorAll('main :is(script, img, iframe, style)').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

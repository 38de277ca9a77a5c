"""A checkpoint is asked from the page what it would say, by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.view.made_run import FakeVoice, add_checkpoint, make_run
from turnwise.errors import EngineError
from turnwise.view.policy_query import PolicyPrediction, PolicyQuery
from turnwise.view.server import ViewServer

from .test_page import wait_until

pytestmark = [pytest.mark.ui, pytest.mark.slow, pytest.mark.xdist_group("ui")]
Open = Callable[..., Any]
Serve = Callable[..., ViewServer]

EPISODE = "episode?run=run&step=2&id=2/frozen_lake/train/200/1"


class TiredVoice(FakeVoice):
    """Cannot answer its third question."""

    def ask(self, question: PolicyQuery) -> PolicyPrediction:
        answer = super().ask(question)
        if len(self.asked) == 3:
            raise EngineError("<b>no answer</b> within 120 seconds")
        return answer


def test_a_checkpoint_is_asked_about_a_token(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run, voice = make_run(tmp_path / "run"), TiredVoice()
    for step, version in ((1, 1), (3, 3)):
        add_checkpoint(run, step, policy_version=version)
    server = serve(tmp_path, voice=voice)
    page = open_page(server.address)
    page.goto(f"http://127.0.0.1:{server.port}/#/{EPISODE}")
    page.wait_for_selector(".policy select option:nth-child(3)", state="attached")
    tokens = page.locator(".tok.sampled")
    tokens.first.click()
    assert voice.asked == []
    page.click(".policy button")
    page.wait_for_selector(".alternatives tr")
    ids = [
        int(one) for one in page.evaluate("[...document.querySelectorAll('.tok')].map((span) => span.dataset.place)")
    ]
    assert len(voice.asked[0].prefix_ids) == min(ids) == 3
    told = page.inner_text(".policy-answer")
    assert "exactly the weights that sampled this token" in told
    assert "75.0 %" in told
    assert "#7#2" in page.inner_text(".continuation")
    assert "is not among them" in told
    # From here on the arrow keys ask too; another checkpoint is named with its distance.
    page.keyboard.press("ArrowRight")
    wait_until(page, "document.querySelector('.policy-answer code').parentNode.textContent.includes('position 4')")
    page.wait_for_selector(".alternatives tr")
    assert len(voice.asked[1].prefix_ids) == 4
    page.select_option(".policy select", "3")
    page.wait_for_selector(".policy .problem")
    assert page.inner_text(".policy .problem") == "<b>no answer</b> within 120 seconds"
    page.locator("h1").click()
    page.keyboard.press("a")
    page.wait_for_selector(".alternatives tr")
    assert "2 updates after the weights that sampled this token (version 1)" in page.inner_text(".policy-answer")


def test_a_run_without_checkpoints_says_how_to_get_some(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    make_run(tmp_path / "run")
    server = serve(tmp_path)
    page = open_page(server.address)
    page.goto(f"http://127.0.0.1:{server.port}/#/{EPISODE}")
    page.wait_for_selector(".policy .empty")
    assert "report.checkpoint_every" in page.inner_text(".policy")

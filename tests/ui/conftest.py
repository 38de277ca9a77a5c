"""A real Chromium before a real server over runs on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from turnwise.view.policy_query import PolicyBackend
from turnwise.view.server import RunCollection, ViewServer

CHROMIUM = os.environ.get("TURNWISE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-ui installs it")
    pytest.importorskip("starlette", reason="needs the extra serve: pip install 'turnwise[serve]'")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium, or name one in TURNWISE_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        # A sandbox inside a container without privileges cannot be made.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., ViewServer]]:
    """Starts a page over folders; all of them end with the test."""
    started: list[tuple[ViewServer, Thread]] = []

    def start(*places: Path, voice: PolicyBackend | None = None) -> ViewServer:
        server = ViewServer(RunCollection(list(places), voice=voice))
        thread = Thread(target=server.run, daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.stop()
        thread.join(timeout=20)


def is_complaint(said: Any, is_refused: bool) -> bool:
    return said.type in ("error", "warning") and not (is_refused and "status of 404" in said.text)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address; a test fails where the page complained about anything.

    With `is_refused` the server may refuse questions, which the browser notes by itself.
    """
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_(
        address: str, *, width: int = 1400, height: int = 900, scheme: str = "light", is_refused: bool = False
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said, is_refused) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []

"""Every block of every page: Python runs, settings load, sessions say what they say; commands have their own tests."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import importlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

import turnwise as tw
from turnwise.cli import main
from turnwise.config.load import load_settings
from turnwise.run.serving import load_served, open_endpoint

from .docs_reader import (
    files_of,
    name_of,
    page_blocks,
    put_data,
    put_files,
    put_runs,
    read_yaml_documents,
    reader,  # noqa: F401 - fixtures
    trained,  # noqa: F401
)
from .envs.alfworld_games import GAMES, unpack_games
from .test_docs import ROOT, example, pages

# --- Python -----------------------------------------------------------------------------------------------------------

LEFT_TO_THE_READER = {
    "coming_from": """
from transformers import AutoTokenizer
import turnwise as tw
tokenizer = AutoTokenizer.from_pretrained(tw.open_run("runs/mine").policy)
my_model = lambda prompt_ids: "<answer>Right</answer>"
""",
    "token_log": """
from turnwise.config.load import load_settings
rule = load_settings("frozenlake").credit
""",
    "custom_components": "from turnwise.config.settings import Settings",
    "custom_workflow": "import turnwise as tw\nfrom examples.train_agent import LakeAgent as MyAgent",
}
"""What the blocks of a page name and the page describes in words."""


@pytest.mark.parametrize("page", sorted({page for page, _, kind, _ in page_blocks() if kind == "python"}))
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path,
    reader: Path,  # noqa: F811
    trained: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = page.read_text(encoding="utf-8")
    put_files(reader, page)
    put_runs(reader, trained, text + LEFT_TO_THE_READER.get(page.stem, ""))
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.ExitStack() as opened:
        SET_UP.get(page.stem, lambda *_: None)(reader, names, opened)
        exec(LEFT_TO_THE_READER.get(page.stem, ""), names)
        for _, number, kind, block in (found for found in page_blocks() if found[0] == page):
            if kind == "python" and block in files_of(page).values():
                (file,) = (file for file, text in files_of(page).items() if text == block)
                names |= vars(importlib.import_module(file.removesuffix(".py")))
            elif kind == "python":
                exec(compile(block, name_of(page, number), "exec"), names)
    for test in [found for name, found in names.items() if name.startswith("test_")]:
        test()


def open_server(folder: Path, names: dict[str, Any], opened: contextlib.ExitStack) -> None:
    """`turnwise serve` under the port and the token that the page leaves open."""
    begun: list[Any] = []
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with open_endpoint(load_served("frozenlake"), token="key") as endpoint:
            begun.append(endpoint.address)
            await ended.wait()

    thread = Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    while not begun and thread.is_alive():
        thread.join(timeout=0.05)
    opened.callback(thread.join)
    opened.callback(loop.call_soon_threadsafe, ended.set)
    names |= {"PORT": int(begun[0].rpartition(":")[2]), "TOKEN": "key"}


def open_games(folder: Path, names: dict[str, Any], opened: contextlib.ExitStack) -> None:
    """The original's games, where the page says "…"."""
    if not GAMES.is_dir():
        pytest.skip(f"the original's games are not in {GAMES}")
    games = unpack_games(folder / "…" / "json_2.1.1")
    shutil.copy(next(games.rglob("game.tw-pddl")), folder / "…" / "game.tw-pddl")


SET_UP: dict[str, Callable[[Path, dict[str, Any], contextlib.ExitStack], None]] = {
    "serve": open_server,
    "alfworld": open_games,
    "webshop": lambda folder, *_: put_data(folder),
}


def test_functions_on_pages_do_what_the_pages_say() -> None:
    names: dict[str, Any] = {}
    exec(example("environments/third_party.md", holding="def make_task"), names)
    text, check = names["make_task"](23, "train")
    assert (text, check("5"), check("6")) == ("What is 3 + 2?", 1.0, 0.0)
    exec(example("environments/dataset.md", holding="def score"), names)
    assert names["score"](" 18 ", {"answer": "9 + 9\n#### 18"}) == 1.0
    exec(example("rewards.md", holding="def shape"), names)
    turn = SimpleNamespace(is_effective=True, reward=1.0, response="x" * 10)
    assert names["shape"](turn) == pytest.approx(1.04)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=name_of(page, number)) for page, number, kind, text in page_blocks() if kind == "yaml"],
)
def test_settings_on_a_page_are_settings(
    text: str,
    reader: Path,  # noqa: F811
    trained: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    put_runs(reader, trained, text)
    for given in read_yaml_documents(text):
        # Where a page shows one section, the world is any.
        load_settings({"env": {"type": "frozen_lake"}} | given)


# --- sessions ---------------------------------------------------------------------------------------------------------


def sessions(sign: str) -> list[Any]:
    return [
        pytest.param(text, id=name_of(page, number)) for page, number, _, text in page_blocks() if text.startswith(sign)
    ]


@pytest.mark.parametrize("text", sessions("$ "))
def test_a_session_in_the_terminal_says_what_the_page_says(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, told in re.findall(r"^\$ turnwise (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
        assert main(shlex.split(command)) == 2
        assert capsys.readouterr().err.strip() == told.strip()


@pytest.mark.parametrize("text", sessions(">>> "))
def test_a_session_in_python_says_what_the_page_says(text: str) -> None:
    test = doctest.DocTestParser().get_doctest(text, {"tw": tw}, "page", None, None)
    assert doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test).failed == 0


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {kind for page, _ in pages() if not page.name.endswith(".in.md") for kind in found_kinds(page)}
    assert kinds <= {"python", "yaml", "bash", "text", ""}


def found_kinds(page: Path) -> Iterator[str]:
    """As the page writes them, also inside lists and with words behind them."""
    for number, line in enumerate(re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)):
        if number % 2 == 0:
            yield line

"""Where the reader of the documentation sits: a folder with the files, runs and names that its pages take for granted.

Recipes are small here, below what a page itself says: `learn.steps: 40` of a page stays forty steps, of a tiny model.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from tests.small_run import SMALL_LAKE, without_plots
from turnwise.config import load
from turnwise.config.load import Layer
from turnwise.run.api import Run, train

from .envs.shops import write_shop
from .test_docs import FENCED, ROOT, pages

SMALL: dict[str, Any] = OmegaConf.to_container(OmegaConf.from_dotlist(SMALL_LAKE))  # type: ignore[assignment]
SMALL_RECIPES = ("frozenlake", "agent_class")
"""Those that are trained here; all others are resolved and no more."""
TAKEN_FOR_GRANTED = {
    "my.yaml": yaml.safe_dump({"extends": "frozenlake"} | SMALL),
    "league.yaml": "env: {type: 'textarena:TicTacToe-v0'}\nrollout: {workflow: league, group_size: 2}\n",
    "prompts.jsonl": '{"prompt": "Say hello."}\n{"prompt": "Say goodbye."}\n',
    "chatml.jinja": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "my_rules.py": "def always_right(env, observation):\n    return 'Right'\n",
    "my_tools.py": "def look_up(name: str) -> str:\n    'What is known of it.'\n    return name\n",
}
"""What pages name and leave to the reader."""
_NAMED_BY_COMMENT = re.compile(r"\A# ([\w.]+\.py)\n")
_NAMED_BEFORE = re.compile(r"^`([\w.]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def page_blocks() -> Iterator[tuple[Path, int, str, str]]:
    """Every block of every page: where it stands, its language, its text."""
    for page, whole in pages():
        if not page.name.endswith(".in.md"):
            for number, (kind, text) in enumerate(FENCED.findall(whole)):
                yield page, number, kind, text


def name_of(page: Path, number: int) -> str:
    return f"{page.stem}-{number}"


def files_of(page: Path) -> dict[str, str]:
    """The blocks of a page that it gives the name of a file."""
    whole = page.read_text(encoding="utf-8")
    by_comment = {
        found[1]: text
        for kind, text in FENCED.findall(whole)
        if kind == "python" and (found := _NAMED_BY_COMMENT.match(text))
    }
    return by_comment | dict(_NAMED_BEFORE.findall(whole))


def make_recipes_small(patch: pytest.MonkeyPatch) -> None:
    """Between a shipped recipe and what somebody changes of it; runs on disk are read as they are."""
    read: Callable[..., tuple[list[Layer], str]] = load._read_source

    def read_small(recipe: Any) -> tuple[list[Layer], str]:
        layers, name = read(recipe)
        is_small = str(recipe) in SMALL_RECIPES
        return ([*layers, Layer(keys=SMALL, source="a test")] if is_small else layers), name

    patch.setattr(load, "_read_source", read_small)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as long as pages speak of: its steps 3, 7 and 40 are on record, and 40 is a checkpoint."""
    path = tmp_path_factory.mktemp("reader") / "run"
    with pytest.MonkeyPatch.context() as patch:
        without_plots(patch)
        train("frozenlake", [*SMALL_LAKE, "learn.steps=40", "report.checkpoint_every=20"], run_dir=path)
    return path


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the reader's own, with examples beside, to be and to import from."""
    without_plots(monkeypatch)
    make_recipes_small(monkeypatch)
    for name, text in TAKEN_FOR_GRANTED.items():
        (tmp_path / name).write_text(text)
    for page, _ in pages():
        put_files(tmp_path, page)
    for file in tmp_path.glob("*.py"):
        # Another test may have imported a file of the same name.
        sys.modules.pop(file.stem, None)
    before = set(sys.modules)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith((str(tmp_path), str(ROOT / "examples"))):
            del sys.modules[name]


def put_files(folder: Path, page: Path) -> None:
    """The files that a page writes down; those of another page of the same name are gone."""
    for name, text in files_of(page).items():
        (folder / name).write_text(text)


def put_runs(folder: Path, run: Path, words: str) -> None:
    """The runs that a page names, all of them the one that was trained; a run that its Python makes is left out."""
    made = set(re.findall(r"run_dir=\"([^\"]+)\"", words))
    (folder / "runs").mkdir(exist_ok=True)
    for name in ("my_model", "qwen3", "base_model", "MODEL", "REWARD_MODEL"):
        if not (folder / name).exists():
            (folder / name).symlink_to(Run(run).policy)
    for name in set(re.findall(r"\bruns/[\w.…-]+", words)) - made:
        if not (folder / name).exists():
            (folder / name).symlink_to(run)


def put_data(folder: Path) -> None:
    """The files of other people that pages name."""
    shop = write_shop(folder)
    for name, source in (("items_shuffle_1000.json", "products"), ("items_ins_v2_1000.json", "attributes")):
        (folder / name).symlink_to(str(shop[source]))


def first_episode(run: Path) -> str:
    return str(json.loads((run / "trajectories" / "step-000001.jsonl").read_text().splitlines()[0])["id"])


def read_yaml_documents(text: str) -> list[dict[str, Any]]:
    """The settings of a block; one line after the other where each is an example of the same section."""
    heads = re.findall(r"^(\w+):", text, flags=re.MULTILINE)
    if len(set(heads)) < len(heads):
        return [yaml.safe_load(line) for line in text.splitlines()]
    return [yaml.safe_load(text)]

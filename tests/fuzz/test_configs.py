"""Files of settings, ours and those of other projects: settings, or a clear error."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.checks.settings import find_contradictions, find_unused_settings
from turnwise.config.load import load_recipe, load_settings
from turnwise.config.recipes import SHIPPED
from turnwise.config.trust import block_untrusted_imports
from turnwise.errors import TurnwiseError

from .damage import damaged, plain_values, texts

OURS = sorted(SHIPPED.glob("*.yaml"))
THEIRS = sorted((Path(__file__).parents[1] / "documents" / "files").glob("*.yaml"))


@cache
def known_paths() -> list[str]:
    """Every key of a recipe, as a path."""

    def walk(keys: dict[str, Any], path: str) -> list[str]:
        return [
            found
            for key, value in keys.items()
            for found in (walk(value, f"{path}{key}.") if isinstance(value, dict) and value else [f"{path}{key}"])
        ]

    return walk(load_settings("frozenlake").model_dump(mode="json"), "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


def look(recipe: Any, overrides: Any = ()) -> None:
    """As `turnwise check` looks at it."""
    with block_untrusted_imports(), suppress(TurnwiseError):
        settings = load_recipe(recipe, overrides).settings
        find_contradictions(settings)
        find_unused_settings(settings)


@given(st.data())
def test_damaged_recipes(folder: Path, data: st.DataObject) -> None:
    file = folder / "ours.yaml"
    file.write_bytes(data.draw(damaged(data.draw(st.sampled_from(OURS)).read_bytes())))
    look(file)


@given(st.data())
def test_damaged_files_of_other_projects(folder: Path, data: st.DataObject) -> None:
    file = folder / "theirs.yaml"
    file.write_bytes(data.draw(damaged(data.draw(st.sampled_from(THEIRS)).read_bytes())))
    look(file)


@given(st.data())
def test_any_value_under_any_key(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(known_paths()) | texts.filter(bool))
    look("frozenlake", {path: data.draw(plain_values)})


@given(st.data())
def test_any_mapping(data: st.DataObject) -> None:
    sections = st.sampled_from(
        ["env", "model", "learn", "rollout", "credit", "mix", "extends", "pretrained", "trainer"]
    )
    look(data.draw(st.dictionaries(sections | texts, plain_values, max_size=4)))


@given(st.lists(st.builds("{}={}".format, st.sampled_from(["env", "learn.steps", "a[0]", "["]) | texts, texts) | texts))
def test_any_words_of_a_command(words: list[str]) -> None:
    look("frozenlake", words)

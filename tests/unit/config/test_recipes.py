"""Which file a recipe's name means."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from turnwise.config.load import load_settings
from turnwise.config.recipes import SHIPPED, find_recipe, list_recipes
from turnwise.errors import ConfigError


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `recipes` of a user, with a recipe of a shipped name and one of a new name."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("frozenlake", "own"):
        (folder / f"{name}.yaml").write_text("env: {type: bandit}\n")
    return folder


def test_shipped_recipes_lie_in_the_package() -> None:
    assert find_recipe("frozenlake") == SHIPPED / "frozenlake.yaml"
    assert SHIPPED.parent == Path(__import__("turnwise").__file__).parent
    assert "frozenlake" in list_recipes()


@pytest.mark.usefixtures("beside")
def test_a_shipped_name_means_the_shipped_recipe(caplog: pytest.LogCaptureFixture) -> None:
    assert load_settings("frozenlake").env.type == "frozen_lake"
    (notice,) = caplog.messages
    assert f"'frozenlake' is the shipped recipe {SHIPPED / 'frozenlake.yaml'}" in notice
    assert notice.endswith(f"Give its path to choose it: {Path('recipes') / 'frozenlake.yaml'}")
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.usefixtures("beside")
def test_the_path_chooses_the_users_own(caplog: pytest.LogCaptureFixture) -> None:
    assert load_settings("recipes/frozenlake.yaml").env.type == "bandit"
    assert load_settings("own").env.type == "bandit"
    assert "own" in list_recipes()
    assert caplog.messages == []


def test_a_folder_with_the_name_of_a_recipe_does_not_hide_it(beside: Path) -> None:
    (beside.parent / "bandit").mkdir()
    (beside.parent / "own").mkdir()
    assert find_recipe("bandit") == SHIPPED / "bandit.yaml"
    assert find_recipe("own") == Path("recipes") / "own.yaml"


def test_a_base_is_found_by_the_same_rule(beside: Path, caplog: pytest.LogCaptureFixture) -> None:
    (beside / "by_name.yaml").write_text("extends: frozenlake\n")
    (beside / "by_path.yaml").write_text("extends: frozenlake.yaml\n")
    (beside / "of_own.yaml").write_text("extends: own\n")
    assert load_settings("by_path").env.type == "bandit"
    assert load_settings("of_own").env.type == "bandit"
    assert caplog.messages == []
    assert load_settings("by_name").env.type == "frozen_lake"
    assert "is the shipped recipe" in caplog.messages[0]


def test_shipped_recipes_give_no_notice_about_each_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(SHIPPED.parent)
    for name in ("frozenlake", "starpo"):
        load_settings(name)
    assert caplog.messages == []


def test_unknown_recipes_are_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'frozenlake'"):
        find_recipe("frozen_lake_x")
    with pytest.raises(ConfigError, match="does not exist"):
        find_recipe(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="is a folder"):
        find_recipe(str(tmp_path))

"""Names to objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from turnwise.config.component import ENGINES, ENVS, WORKFLOWS, Alias, ClassRegistry
from turnwise.config.load import load_settings
from turnwise.envs.base import make_env
from turnwise.errors import ConfigError


@pytest.fixture
def registry() -> ClassRegistry:
    return ClassRegistry("fruit", {"path": "pathlib:Path"})


@pytest.mark.parametrize("registry", [ENVS, ENGINES, WORKFLOWS])
def test_every_shipped_name_can_be_imported(registry: ClassRegistry) -> None:
    assert len(registry) > 0
    for name in registry:
        module, _, attribute = registry[name].partition(":")
        target = registry.get_target(name)
        assert callable(target)
        assert target.__name__ == attribute  # type: ignore[attr-defined]
        assert target.__module__.startswith(module)


def test_names_and_paths_give_the_object(registry: ClassRegistry) -> None:
    assert registry.get_target("path") is Path
    assert registry.get_target("pathlib:PurePath").__name__ == "PurePath"  # type: ignore[attr-defined]


def test_names_can_be_added_once(registry: ClassRegistry) -> None:
    registry.register("number", int)
    registry.register("text", "builtins:str")
    assert (registry.get_target("number"), registry.get_target("text")) == (int, str)
    assert (sorted(registry), len(registry)) == (["number", "path", "text"], 3)
    assert "number" in registry
    for name in ("number", "path"):
        with pytest.raises(ConfigError, match=f"fruit '{name}' is registered already"):
            registry.register(name, float)


def test_an_unknown_name_gets_the_closest_match(registry: ClassRegistry) -> None:
    with pytest.raises(ConfigError, match=r"no fruit named 'paht'. Did you mean 'path'\?.*package\.module:Class"):
        registry.get_target("paht")


def test_a_plug_in_beside_the_user_is_found(
    registry: ClassRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_me.py").write_text("class Own: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    assert registry.get_target("beside_me:Own").__name__ == "Own"  # type: ignore[attr-defined]


def test_a_missing_module_behind_a_plug_in_is_named(
    registry: ClassRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="module 'not_installed_here' cannot be imported"):
        registry.get_target("needs_more:Own")


# --- names of other systems -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", [ENVS, WORKFLOWS])
def test_every_alias_stands_for_a_registered_name_with_settings_of_its_own(registry: ClassRegistry) -> None:
    assert registry.aliases
    for spelling, alias in registry.aliases.items():
        assert alias.name in registry
        assert registry.get_target(spelling.upper()) is registry.get_target(alias.name)
        assert not alias.params.keys() - getattr(registry.get_params(spelling), "model_fields", {}).keys()


def test_an_alias_becomes_the_name_here_with_what_it_stands_for() -> None:
    settings = load_settings(
        {"env": {"type": "LargerSokoban", "rows": 9}, "rollout": {"workflow": "alfworld_workflow"}}
    )
    env: Any = settings.env
    assert (env.type, env.rows, env.columns, env.num_boxes) == ("sokoban", 9, 8, 2)
    assert settings.rollout.workflow == "environment"
    lake: Any = load_settings({"env": {"type": "frozen_lake", "size": 5}}, {"env.type": "FrozenLake"}).env
    assert lake.size == 5
    assert len(make_env("SimpleSokoban").reset(seed=1).split()) == 6


def test_a_registered_name_comes_before_an_alias() -> None:
    registry = ClassRegistry("fruit", {"path": "pathlib:Path"}, aliases={"Way": Alias("path")})
    assert registry.get_target("way") is Path
    registry.register("way", int)
    assert (registry.get_target("way"), registry.get_target("Way")) == (int, Path)


def test_a_decorator_registers_and_a_cell_may_run_again(registry: ClassRegistry) -> None:
    def write() -> type:
        @registry.register_module("own")
        class Own: ...

        return Own

    write()
    again = write()
    assert registry.get_target("own") is again
    with pytest.raises(ConfigError, match="fruit 'own' is registered already"):
        registry.register_module("own")(int)


def test_dotted_paths_of_classes_are_imported() -> None:
    workflows = ClassRegistry("workflows", default_mapping={"mine": "pathlib.Path"})
    assert workflows.get_target("mine") is Path
    assert workflows.get_target("pathlib.PurePath").__name__ == "PurePath"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"'no_such\.Class': module 'no_such' cannot be imported"):
        workflows.get_target("no_such.Class")
    with pytest.raises(ConfigError, match="module 'pathlib' has no 'Nothing'"):
        workflows.get_target("pathlib.Nothing")


@pytest.mark.parametrize("name", [".", "..", "./lake", ":", ":Lake", "a..b:Lake", "json:", "json."])
def test_what_is_no_name_of_a_class_is_not_imported(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"environment '{name}' must be a known name, or a class")):
        ENVS.get_target(name)

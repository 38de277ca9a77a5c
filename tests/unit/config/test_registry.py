"""Names to objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.config.registry import CREDITS, ENGINES, ENVS, LOSSES, WORKFLOWS, Registry
from turnwise.errors import ConfigError


@pytest.fixture
def registry() -> Registry:
    return Registry("fruit", {"path": "pathlib:Path"})


@pytest.mark.parametrize("registry", [ENVS, ENGINES, WORKFLOWS, CREDITS, LOSSES])
def test_every_shipped_name_can_be_imported(registry: Registry) -> None:
    assert len(registry) > 0
    for name in registry:
        module, _, attribute = registry[name].partition(":")
        target = registry.get_target(name)
        assert callable(target)
        assert target.__name__ == attribute  # type: ignore[attr-defined]
        assert target.__module__.startswith(module)


def test_names_and_paths_give_the_object(registry: Registry) -> None:
    assert registry.get_target("path") is Path
    assert registry.get_target("pathlib:PurePath").__name__ == "PurePath"  # type: ignore[attr-defined]


def test_names_can_be_added_once(registry: Registry) -> None:
    registry.register("number", int)
    registry.register("text", "builtins:str")
    assert (registry.get_target("number"), registry.get_target("text")) == (int, str)
    assert (sorted(registry), len(registry)) == (["number", "path", "text"], 3)
    assert "number" in registry
    for name in ("number", "path"):
        with pytest.raises(ConfigError, match=f"fruit '{name}' is registered already"):
            registry.register(name, float)


def test_an_unknown_name_gets_the_closest_match(registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"no fruit named 'paht'. Did you mean 'path'\?.*package\.module:Class"):
        registry.get_target("paht")


def test_a_plug_in_beside_the_user_is_found(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_me.py").write_text("class Own: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in __import__("sys").path if p])
    assert registry.get_target("beside_me:Own").__name__ == "Own"  # type: ignore[attr-defined]


def test_a_missing_module_behind_a_plug_in_is_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="module 'not_installed_here' cannot be imported"):
        registry.get_target("needs_more:Own")

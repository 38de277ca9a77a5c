"""Components: names are read from the source, classes of the old form are adapted, mistakes are named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from turnwise.config.component import Component, Registry, component_kind
from turnwise.config.kinds import ADVANTAGE_ESTIMATORS, Choice
from turnwise.config.load import dump_settings, load_partial_settings, load_settings
from turnwise.config.schema import CHOICES
from turnwise.config.trust import block_untrusted_imports
from turnwise.credit.gae import Gae
from turnwise.errors import ConfigError

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}, "learn": {"critic": {"type": "value_head"}}}
COMPONENTS = [choice for choice in CHOICES if choice.is_component]
every_kind = pytest.mark.parametrize("choice", COMPONENTS, ids=lambda choice: choice.path)


def registry_of(choice: Choice) -> Registry[Any]:
    assert isinstance(choice.registry, Registry)
    return choice.registry


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def write(text: str) -> None:
        (tmp_path / "my_components.py").write_text("from turnwise.config.settings import Settings\n" + text)
        sys.modules.pop("my_components", None)

    monkeypatch.syspath_prepend(str(tmp_path))
    return write


def old_form(choice: Choice, *, without: str = "", key: str = "own_number") -> str:
    names = [name for name in registry_of(choice).old_form if name != without]
    return "".join(
        [
            f"class Old:\n    class Params(Settings):\n        {key}: int = 2\n    def __init__(self, settings): ...\n",
            *(f"    def {name}(self, *given): ...\n" for name in names),
            "def function(*given): ...\nnumber = 3\n",
        ]
    )


def section_of(settings: Any, choice: Choice) -> Any:
    return reduce(getattr, choice.path.split("."), settings)


def problem(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(LAKE, overrides)
    return str(caught.value)


# --- classes of the old form -----------------------------------------------------------------------------------------


@every_kind
def test_a_class_of_the_old_form_brings_its_settings(choice: Choice, plug_in: Any, tmp_path: Path) -> None:
    plug_in(old_form(choice))
    words = [f"{choice.path}.{choice.key}=my_components:Old", f"{choice.path}.own_number=5"]
    settings = load_settings(LAKE, words)
    section = section_of(settings, choice)
    assert isinstance(section, choice.base)
    assert (getattr(section, choice.key), section.own_number) == ("my_components:Old", 5)
    assert load_settings(LAKE, words) == settings
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert load_settings(str(tmp_path / "config.yaml")).model_copy(update={"recipe": settings.recipe}) == settings


@every_kind
def test_mistakes_about_a_class_of_the_old_form_are_named(choice: Choice, plug_in: Any) -> None:
    path = f"{choice.path}.{choice.key}"
    plug_in(old_form(choice))
    message = problem(f"{path}=my_components:Old", f"{choice.path}.own_numbr=5")
    assert message == f"{choice.path}.own_numbr: unknown setting. Did you mean 'own_number'?"
    assert problem(f"{path}=my_components:number").startswith(f"{path}: 'my_components:number' is 3; expected a class")
    missing = registry_of(choice).old_form[-1]
    plug_in(old_form(choice, without=missing))
    wanted = ", ".join(registry_of(choice).old_form)
    message = problem(f"{path}=my_components:Old")
    assert message == f"{path}: 'my_components:Old' has no {missing}; expected a class with {wanted}."
    plug_in("class Old:\n    class Params:\n        own = 2\n")
    assert f"{path}: 'Params' of 'my_components:Old' is " in problem(f"{path}=my_components:Old")


def test_facts_and_the_call_of_the_old_form_are_those_of_the_class(plug_in: Any) -> None:
    plug_in(
        "class Old:\n"
        "    needs_values, needs_groups, needs_greedy = False, True, False\n"
        "    class Params(Settings):\n        scale: float = 2.0\n"
        "    def __init__(self, settings):\n        self.settings = settings\n"
        "    def __call__(self, experiences, annotations):\n        return [self.settings.scale, self]\n"
        "def make(settings):\n    return Old\n"
    )
    credit = ADVANTAGE_ESTIMATORS.parse({"type": "my_components:Old", "scale": 3.0})
    assert (credit.needs_groups, credit.needs_greedy, credit.reference([])) == (True, False, None)
    scale, made = credit([], None)  # type: ignore[arg-type, misc]
    assert scale == 3.0
    assert credit([], None)[1] is made  # type: ignore[arg-type]
    assert isinstance(ADVANTAGE_ESTIMATORS.parse({"type": "my_components:make"}), ADVANTAGE_ESTIMATORS.base)


# --- classes of the new form -----------------------------------------------------------------------------------------


@every_kind
def test_every_shipped_name_is_found_and_is_its_own_default(choice: Choice) -> None:
    registry = registry_of(choice)
    assert registry.default in registry.shipped
    for name in registry.shipped:
        assert registry.find(name).model_fields[choice.key].default == name


@every_kind
def test_mistakes_about_a_name_are_named_with_their_path(choice: Choice) -> None:
    path, registry = f"{choice.path}.{choice.key}", registry_of(choice)
    near = f"{registry.default}x"
    message = problem(f"{path}={near}")
    assert message.startswith(f"{path}: there is no {registry.kind} named '{near}'. Did you mean '{registry.default}'?")
    assert problem(f"{path}=3") == f"{path}: 3 given; expected a name such as '{registry.default}'."
    assert "module 'no_such_module' cannot be imported" in problem(f"{path}=no_such_module:Class")
    settings = load_partial_settings(LAKE, [f"{path}={near}"])
    assert len(settings.problems) == 1
    assert settings.settings is not None


@every_kind
def test_a_class_that_may_not_be_imported_leaves_the_rest_of_its_section(choice: Choice) -> None:
    with block_untrusted_imports() as unseen:
        settings = load_settings(LAKE, [f"{choice.path}.{choice.key}=no_such_module:Class", f"{choice.path}.own=3"])
    assert getattr(section_of(settings, choice), choice.key) == "no_such_module:Class"
    assert list(unseen) == ["no_such_module:Class"]


def test_a_component_without_its_method_is_refused(plug_in: Any) -> None:
    plug_in(
        "from turnwise.config.kinds import AdvantageEstimator\nclass Half(AdvantageEstimator):\n    share: int = 3\n"
    )
    expected = "credit.type: 'my_components:Half' has no __call__, which its kind must have; write __call__."
    assert problem("credit.type=my_components:Half") == expected


def test_a_name_is_taken_once_and_aliases_bring_settings() -> None:
    @component_kind("fruit", "turnwise.no_such_package")
    class Fruit(Component):
        type: str = "apple"

    class Apple(Fruit, name="apple", aliases={"BigApple": {"size": 9}}):
        size: int = 1

    fruits: Registry[Any] = Fruit.registry
    assert fruits.names() == ("apple",)
    assert (Apple().type, fruits.parse({})) == ("apple", Apple())
    assert fruits.parse({"type": "bigapple"}) == Apple(size=9)
    assert fruits.parse({"type": "BigApple", "size": 2}) == Apple(size=2)
    with pytest.raises(ConfigError, match="fruit 'apple' is registered already"):

        class Other(Fruit, name="apple"): ...

    with pytest.raises(ValueError, match="there is no fruit named 'aple'"):
        fruits.parse({"type": "aple"})


def test_another_choice_drops_the_keys_of_the_one_before() -> None:
    recipe = {**LAKE, "credit": {"type": "gae", "lam": 0.5}}
    settings = load_settings(recipe, ["credit.type=bi_level_gae"])
    assert settings.credit.model_dump()["lam"] == 1.0
    assert load_settings(recipe, ["credit.gamma=0.5"]).credit == Gae(lam=0.5, gamma=0.5)

"""Sections in which a class is chosen: whose keys are legal, what is refused, what stays when another is chosen."""

from __future__ import annotations

import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from turnwise.checks.settings import check_settings
from turnwise.config.kinds import Choice
from turnwise.config.load import dump_settings, load_settings
from turnwise.config.recipes import list_recipes
from turnwise.config.schema import CHOICES, read_section
from turnwise.config.settings import Settings
from turnwise.errors import ConfigError

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}, "learn": {"critic": {"type": "value_head"}}}
WITH_PARAMS = [choice for choice in CHOICES if choice.takes_params and not choice.is_component]
WITH_METHODS = [choice for choice in CHOICES if choice.methods]

PLUGIN = """
from typing import Literal
from turnwise.config.settings import Settings

class OwnParams(Settings):
    own_number: int = 2

class NamedParams(Settings):
    type: Literal["another"] = "another"
    method: Literal["another"] = "another"
    own_number: int = 2

class Own:
    Params = OwnParams

class Named:
    Params = NamedParams

class Bare:
    pass

class Foreign:
    class Params:
        own_number = 2

class Greedy:
    class Params(Settings):
        pass

def function(*args, **kwargs):
    return None

number = 3
"""


def path_of(choice: Choice) -> str:
    return choice.path


def read(settings: Settings, path: str) -> Any:
    return reduce(getattr, path.split("."), settings)


def problem(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_settings(load_settings(LAKE, overrides))
    return str(caught.value)


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write(text: str = PLUGIN) -> None:
        (tmp_path / "my_choices.py").write_text(text)
        sys.modules.pop("my_choices", None)

    monkeypatch.syspath_prepend(str(tmp_path))
    write()
    return write


# --- whose keys are legal --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize("choice", WITH_PARAMS, ids=path_of)
@pytest.mark.parametrize("name", ["my_choices:Own", "my_choices:Named"])
def test_a_class_of_ones_own_brings_its_settings(choice: Choice, name: str, tmp_path: Path) -> None:
    words = [f"{choice.path}.{choice.key}={name}", f"{choice.path}.own_number=5"]
    settings = load_settings(LAKE, words)
    section = read(settings, choice.path)
    assert isinstance(section, choice.base)
    assert (getattr(section, choice.key), section.own_number) == (name, 5)
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert dump_settings(load_settings(str(tmp_path / "config.yaml"))) == dump_settings(settings)


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize("choice", WITH_PARAMS, ids=path_of)
def test_a_misspelt_setting_of_a_class_of_ones_own_is_named(choice: Choice) -> None:
    message = problem(f"{choice.path}.{choice.key}=my_choices:Own", f"{choice.path}.own_numbr=5")
    assert message == f"{choice.path}.own_numbr: unknown setting. Did you mean 'own_number'?"


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize("choice", WITH_PARAMS, ids=path_of)
@pytest.mark.parametrize("name", ["my_choices:Bare", "my_choices:function"])
def test_without_params_only_the_keys_of_the_section_are_legal(choice: Choice, name: str) -> None:
    chosen = f"{choice.path}.{choice.key}={name}"
    assert getattr(read(load_settings(LAKE, [chosen]), choice.path), choice.key) == name
    assert f"{choice.path}.own_number: unknown setting" in problem(chosen, f"{choice.path}.own_number=5")


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize("choice", WITH_PARAMS, ids=path_of)
def test_params_that_are_no_settings_are_refused(choice: Choice) -> None:
    message = problem(f"{choice.path}.{choice.key}=my_choices:Foreign")
    assert message.startswith(f"{choice.path}.{choice.key}: 'Params' of 'my_choices:Foreign' is ")
    assert "expected a subclass of turnwise.config.settings.Settings" in message


@pytest.mark.parametrize("choice", WITH_PARAMS, ids=path_of)
def test_params_may_not_take_a_key_of_the_section(choice: Choice, plug_in: Any) -> None:
    keys = [key for key in choice.base.model_fields if key != choice.key]
    plug_in(PLUGIN.replace("        pass", "\n".join(f"        {key}: int = 3" for key in keys) or "        pass"))
    words = f"{choice.path}.{choice.key}=my_choices:Greedy"
    if not keys:
        load_settings(LAKE, [words])
        return
    assert f"has {', '.join(repr(key) for key in sorted(keys))}, which {choice.path} has already" in problem(words)


@pytest.mark.parametrize("choice", WITH_PARAMS, ids=path_of)
def test_where_a_registry_says_settings_are_is_where_the_class_has_them(choice: Choice) -> None:
    for name in choice.registry:
        target = choice.registry.get_target(name)
        assert (choice.registry.get_params(name) or Settings) is getattr(target, "Params", Settings)


def test_equal_settings_compare_equal_whoever_loads_them() -> None:
    assert load_settings(LAKE) == load_settings(LAKE)
    assert load_settings(LAKE, ["learn.steps=3"]) != load_settings(LAKE)


@pytest.mark.slow
def test_reading_and_checking_settings_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from turnwise.checks.settings import check_settings, find_unused_settings\n"
        "from turnwise.config.load import load_settings\n"
        f"for recipe in {list_recipes()!r}:\n"
        "    settings = load_settings(recipe)\n"
        "    check_settings(settings)\n"
        "    find_unused_settings(settings)\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# --- what a chosen class must have -----------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", WITH_METHODS, ids=path_of)
def test_a_class_without_the_methods_of_its_kind_is_refused(choice: Choice, plug_in: Any) -> None:
    needs = "    needs_values = needs_groups = needs_greedy = False\n"
    *given, missing = choice.methods
    written = needs + "".join(f"    def {method}(self): ...\n" for method in given)
    plug_in(f"class Own:\n{written}\nclass Whole(Own):\n    def {missing}(self): ...\n")
    path = f"{choice.path}.{choice.key}"
    message = problem(f"{path}=my_choices:Own")
    wanted = ", ".join(choice.methods)
    assert message == f"{path}: 'my_choices:Own' has no {missing}; expected a class with {wanted}."
    check_settings(load_settings(LAKE, [f"{path}=my_choices:Whole"]))


@pytest.mark.parametrize("choice", WITH_METHODS, ids=path_of)
def test_a_class_that_was_given_a_name_is_looked_at_too(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        needs_values = needs_groups = needs_greedy = False

    monkeypatch.setattr(choice.registry, "_added", {"mine": Mine})
    assert f"'mine' has no {', '.join(choice.methods)}" in problem(f"{choice.path}.{choice.key}=mine")


def test_an_environment_in_a_mix_is_looked_at_too(plug_in: Any) -> None:
    plug_in("class Own:\n    def reset(self): ...\n")
    message = problem("mix.other.env.type=my_choices:Own")
    assert message == "mix.other.env.type: 'my_choices:Own' has no step; expected a class with reset, step."


def test_a_method_that_is_only_promised_is_missing(plug_in: Any) -> None:
    plug_in("from turnwise import BaseEnv\nclass Own(BaseEnv):\n    def step(self, action): ...\n")
    assert "env.type: 'my_choices:Own' has no reset" in problem("env.type=my_choices:Own")


@pytest.mark.usefixtures("plug_in")
def test_a_loop_is_a_function() -> None:
    check_settings(load_settings(LAKE, ["loop.type=my_choices:function"]))
    message = problem("loop.type=my_choices:number")
    assert message == "loop.type: 'my_choices:number' is 3; expected a function."


# --- another choice --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize("choice", [choice for choice in WITH_PARAMS if choice.path != "env"], ids=path_of)
def test_another_choice_drops_the_keys_of_the_one_before_and_keeps_the_section(choice: Choice) -> None:
    default = read(load_settings(LAKE), f"{choice.path}.{choice.key}")
    recipe = load_settings(LAKE, [f"{choice.path}.{choice.key}=my_choices:Own"]).model_dump()
    switched = load_settings(recipe, [f"{choice.path}.{choice.key}={default}"])
    assert switched == load_settings(LAKE)
    kept = {"buffer": "capacity", "learn": "steps", "sync": "interval"}
    if choice.path in kept:
        key = f"{choice.path}.{kept[choice.path]}"
        own = load_settings(LAKE, [f"{choice.path}.{choice.key}=my_choices:Own", f"{key}=99"]).model_dump()
        assert read(load_settings(own, [f"{choice.path}.{choice.key}={default}"]), key) == 99


def test_a_choice_that_is_not_written_down_is_the_default() -> None:
    recipe = {**LAKE, "credit": {"high_level_gamma": 0.5}}
    assert load_settings(recipe, ["credit.type=bi_level_gae"]).credit.model_dump()["high_level_gamma"] == 0.5
    recipe = {**LAKE, "learn": {"loss": {"clip_high": 0.5}}}
    assert load_settings(recipe, ["learn.loss.type=ppo_clip"]).learn.loss.model_dump()["clip_high"] == 0.5
    assert load_settings(recipe, ["learn.loss.type=reinforce"]).learn.loss.model_dump() == {"type": "reinforce"}


@pytest.mark.parametrize("path", ["env", "mix.other.env"])
def test_another_environment_drops_what_was_said_about_training_in_the_one_before(path: str) -> None:
    other = {"other": {"env": {"type": "frozen_lake", "train": {"size": 3}}}}
    recipe = {**LAKE, "env": {"type": "frozen_lake", "train": {"size": 3}}, "mix": other}
    settings = load_settings(recipe, [f"{path}.type=bandit"])
    assert read(settings, path).train == {}
    check_settings(settings)


def test_a_section_alone_is_what_it_was_in_the_whole() -> None:
    """Processes that need no other section are sent its words."""
    learn = load_settings(
        LAKE, ["learn.loss={type: gspo, clip_low: 0.1}", "learn.parallel={type: ddp, ranks: 3}"]
    ).learn
    assert read_section("learn", learn.model_dump()) == learn

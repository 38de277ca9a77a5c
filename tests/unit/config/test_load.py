"""Text in, frozen settings out: who wins, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import (
    dump_settings,
    env_params,
    load_settings,
    parse_params,
)
from turnwise.errors import ConfigError

LAKE: dict[str, Any] = {"env": {"type": "frozen_lake"}}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


def problem(recipe: Any, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(recipe, overrides)
    return str(caught.value)


# --- who wins --------------------------------------------------------------------------------------------------------


def test_defaults_then_extends_then_recipe_then_overrides(write: Any) -> None:
    base = "env: {type: bandit}\nlearn: {steps: 11, epochs: 2, minibatches: 3}\nrollout: {groups: 5}\n"
    write("base.yaml", base)
    middle = write("middle.yaml", "extends: base\nlearn: {epochs: 4, minibatches: 5}\n")
    top = write("top.yaml", f"extends: {middle}\nlearn: {{minibatches: 6}}\n")
    settings = load_settings(top, ["rollout.groups=7"])
    assert settings.learn.steps == 11  # of the base
    assert settings.learn.epochs == 4  # of the file in between
    assert settings.learn.minibatches == 6  # of the recipe
    assert settings.rollout.groups == 7  # of the override
    assert settings.rollout.max_turns == 5  # the default
    assert settings.recipe == "top"


def test_the_last_override_wins() -> None:
    assert load_settings(LAKE, ["learn.steps=3", "learn.steps=4"]).learn.steps == 4


def test_overrides_may_be_a_mapping_of_paths() -> None:
    settings = load_settings(LAKE, {"learn.steps": 4, "env.size": 3, "learn.critic.type": "value_head"})
    assert (settings.learn.steps, settings.env.model_dump()["size"]) == (4, 3)
    assert settings.learn.critic.type == "value_head"


def test_extends_finds_a_shipped_recipe(write: Any) -> None:
    settings = load_settings(write("mine.yaml", "extends: frozenlake\nlearn: {steps: 3}\n"))
    assert (settings.recipe, settings.learn.steps, settings.env.type) == ("mine", 3, "frozen_lake")


def test_a_recipe_keeps_the_name_it_gives_itself() -> None:
    assert load_settings(LAKE).recipe == "custom"
    assert load_settings({**LAKE, "recipe": "named"}).recipe == "named"


def test_references_are_resolved_after_overrides(write: Any) -> None:
    file = write("a.yaml", "env: {type: bandit}\nrollout: {groups: 4, max_turns: '${rollout.groups}'}\n")
    assert load_settings(file).rollout.max_turns == 4
    assert load_settings(file, ["rollout.groups=9"]).rollout.max_turns == 9
    assert load_settings(file, ["learn.steps=${rollout.groups}"]).learn.steps == 4


def test_choices_default_to_grpo_and_ppo_clip() -> None:
    settings: Any = load_settings(LAKE)
    assert (settings.credit.type, settings.learn.loss.type) == ("grpo", "ppo_clip")


# --- words to values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"), [("true", True), ("True", True), ("TRUE", True), ("false", False), ("False", False)]
)
def test_booleans_in_any_case(word: str, value: bool, write: Any) -> None:
    assert load_settings(LAKE, [f"report.tensorboard={word}"]).report.tensorboard is value
    file = write("a.yaml", f"env: {{type: bandit}}\nreport: {{tensorboard: {word}}}\n")
    assert load_settings(file).report.tensorboard is value


@pytest.mark.parametrize(("word", "value"), [("1e-3", 1e-3), ("7.0e-4", 7e-4), ("1", 1.0), ("5E-6", 5e-6)])
def test_numbers_as_people_write_them(word: str, value: float, write: Any) -> None:
    assert load_settings(LAKE, [f"learn.optim.lr={word}"]).learn.optim.lr == value
    file = write("a.yaml", f"env: {{type: bandit}}\nlearn: {{optim: {{lr: {word}}}}}\n")
    assert load_settings(file).learn.optim.lr == value


@pytest.mark.parametrize("word", ["null", "~", "Null"])
def test_null_unsets_an_optional_setting(word: str) -> None:
    settings: Any = load_settings(LAKE, [f"learn.loss.dual_clip={word}", f"rollout.max_actions={word}"])
    assert settings.learn.loss.dual_clip is None
    assert settings.rollout.max_actions is None
    assert "learn.steps" in problem(LAKE, f"learn.steps={word}")


def test_params_of_an_environment_from_words() -> None:
    assert parse_params(["size=5", "view=grid", "is_slippery=True", "symbols.hole=H"]) == {
        "size": 5,
        "view": "grid",
        "is_slippery": True,
        "symbols": {"hole": "H"},
    }
    with pytest.raises(ConfigError, match=r"'size' is not of the form key\.path=value"):
        parse_params(["size"])


def test_env_train_applies_to_the_training_split_alone() -> None:
    settings = load_settings(LAKE, ["env.size=5", "env.train.size=3"])
    assert env_params(settings.env, "train")["size"] == 3
    assert env_params(settings.env, "eval")["size"] == 5
    assert not {"type", "train"} & env_params(settings.env, "train").keys()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learn.stepz=3", ["learn.stepz: unknown setting", "Did you mean 'steps'?"]),
        ("lern.steps=3", ["lern: unknown setting", "Did you mean 'learn'?"]),
        ("rollout.group_sise=2", ["rollout.group_sise: unknown setting", "Did you mean 'group_size'?"]),
        ("env.sizes=3", ["env.sizes: unknown setting", "Did you mean 'size'?"]),
        ("credit={type: gae, gama: 1}", ["credit.gama: unknown setting", "Did you mean 'gamma'?"]),
        ("learn.loss.clip_hi=1", ["learn.loss.clip_hi: unknown setting", "Did you mean 'clip_high'?"]),
        ("learn.steps=many", ["learn.steps: 'many' given", "integer"]),
        ("learn.steps=2.5", ["learn.steps: 2.5 given", "integer"]),
        ("learn.steps=-1", ["learn.steps: -1 given", "greater than or equal to 0"]),
        ("rollout.groups=-4", ["rollout.groups: -4 given", "greater than 0"]),
        ("rollout.groups=0", ["rollout.groups: 0 given"]),
        ("rollout.invalid_penalty=0.5", ["rollout.invalid_penalty: 0.5 given", "less than or equal to 0"]),
        ("learn.optim.lr=0", ["learn.optim.lr: 0 given"]),
        ("learn.optim.lr=nan", ["learn.optim.lr", "given"]),
        ("report.tensorboard=maybe", ["report.tensorboard: 'maybe' given", "boolean"]),
        ("report.tensorboard=1", ["report.tensorboard: 1 given", "boolean"]),
        ("report.tokens=few", ["report.tokens: 'few' given; expected 'all', 'none' or a number of tokens above 0."]),
        ("report.tokens=0", ["report.tokens: 0 given; expected 'all', 'none' or a number"]),
        ("report.tokens=true", ["report.tokens: True given; expected 'all', 'none' or a number"]),
        ("model.path=3", ["model.path: 3 given", "string"]),
        ("context.window=round", ["context.window: 'round' given", "'single_turn'"]),
        ("model.tiny.vocab_size=12", ["model.tiny.vocab_size: 12 given", "300"]),
        ("sync.style=sometimes", ["sync.style: 'sometimes' given", "'fixed'"]),
        ("env.type=frozen_lak", ["env.type: there is no environment named 'frozen_lak'", "Did you mean 'frozen_lake'"]),
        ("env.type=3", ["env.type: 3 given", "expected a name"]),
        ("credit.type=gea", ["credit.type: there is no credit rule named 'gea'", "Did you mean"]),
        ("engine.type=locl", ["engine.type: there is no engine named 'locl'", "Did you mean 'local'?"]),
        ("buffer.type=sqlit", ["buffer.type: there is no buffer named 'sqlit'", "Did you mean 'sqlite'?"]),
        ("buffer.priority.type=new", ["buffer.priority.type: there is no priority named 'new'", "'newest'"]),
        ("learn.type=pp", ["learn.type: there is no learner named 'pp'", "'ppo'"]),
        ("sync.method=memry", ["sync.method: there is no weight transport named 'memry'", "Did you mean 'memory'?"]),
        ("loop.type=seriel", ["loop.type: there is no loop named 'seriel'", "Did you mean 'serial'?"]),
        ("learn.loss.type=ppo", ["learn.loss.type: there is no policy loss named 'ppo'", "package.module:Class"]),
        ("learn.critic.type=actor", ["learn.critic.type: 'actor' given", "'value_head'"]),
        ("learn.critic.coef=1", ["learn.critic", "type"]),
        ("model.lora.rank=4", ["model.lora.type: missing beside 'rank'", "'none', 'lora'"]),
        ("learn.correction.type=half", ["learn.correction.type: 'half' given", "'none', 'truncated', 'masked'"]),
        ("warm_start.type=teacher", ["warm_start.type: 'teacher' given", "'oracle'"]),
        ("learn.kl.type=penalty", ["learn.kl.type: 'penalty' given", "'loss'"]),
        ("learn=3", ["learn: 3 given; expected a section"]),
        ("credit=gae", ["credit: 'gae' given; expected a section"]),
        ("learn.steps", ["override 'learn.steps' is not of the form key.path=value"]),
        ("=3", ["is not of the form key.path=value"]),
        ("learn.steps=[1", ["override 'learn.steps=[1'"]),
        ("learn.steps=${nothing.here}", ["a reference cannot be resolved", "nothing.here"]),
        ("learn.steps=${learn.epochs}", ["a reference cannot be resolved", "learn.epochs"]),
        ("env.view=round", ["env.view: 'round' given", "'objects'"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(override: str, words: list[str]) -> None:
    message = problem(LAKE, override)
    for word in words:
        assert word in message
    assert "pydantic" not in message.lower()


def test_all_problems_are_listed_at_once() -> None:
    message = problem(LAKE, "learn.steps=-1", "rollout.grups=3", "env.size=1")
    assert "several problems" in message
    assert all(path in message for path in ("learn.steps", "rollout.grups", "env.size"))


def test_references_in_a_circle_are_refused(write: Any) -> None:
    file = write("a.yaml", "env: {type: bandit}\nlearn: {steps: '${learn.epochs}', epochs: '${learn.steps}'}\n")
    assert "a reference cannot be resolved" in problem(file)


def test_files_that_extend_each_other_are_refused(write: Any) -> None:
    write("a.yaml", "extends: b\n")
    message = problem(write("b.yaml", "extends: a\n"))
    assert "extends itself" in message
    assert "b.yaml -> a.yaml -> b.yaml" in message
    assert "extends itself" in problem(write("c.yaml", "extends: c\n"))


def test_a_base_that_does_not_exist_is_refused(write: Any) -> None:
    assert "there is no recipe named 'nothing'" in problem(write("a.yaml", "extends: nothing\n"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learn: {steps: 3", "is not valid YAML"),
        ("learn:\n\tsteps: 3", "is not valid YAML"),
        ("a: 1\na: 2\n", "is not valid YAML"),
        ("- a\n- b\n", "must hold settings as 'key: value'"),
        ("t\t", "broken.yaml"),
        ("</answer: >#", "broken.yaml"),
        ("", "env.type is missing"),
        ("env: {size: 4}", "env.type is missing. Choose an environment: alfworld, bandit, countdown, dataset"),
    ],
)
def test_broken_files_are_refused(write: Any, text: str, words: str) -> None:
    assert words in problem(write("broken.yaml", text))


def test_a_value_from_python_that_cannot_be_a_setting_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="override 'env': the value cannot be a setting: Conflicting integer and string"
    ):
        load_settings(LAKE, {"env": {"0": None, 0: None}})


def test_a_file_of_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00bad")
    assert "a.yaml' is not valid YAML" in problem(str(tmp_path / "a.yaml"))


# --- choices ---------------------------------------------------------------------------------------------------------


def test_a_choice_decides_which_keys_are_legal() -> None:
    opmd: Any = load_settings(LAKE, ["credit.type=opmd", "credit.tau=0.5"])
    assert opmd.credit.tau == 0.5
    assert "credit.tau: unknown setting" in problem(LAKE, "credit.tau=0.5")
    assert "credit.gamma: unknown setting" in problem(LAKE, "credit.type=grpo", "credit.gamma=1")
    assert "env.view: unknown setting" in problem({"env": {"type": "bandit"}}, "env.view=grid")
    assert "lr" in problem(LAKE, "learn.critic.type=value_head", "learn.critic.lr=1e-3")
    message = problem(LAKE, "learn.critic.type=value_head", "learn.critic.coeff=1")
    assert message.startswith("learn.critic.coeff: unknown setting")
    assert "Did you mean 'coef'?" in message


def test_settings_are_frozen() -> None:
    settings = load_settings(LAKE)
    with pytest.raises(ValueError, match="frozen"):
        settings.learn.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize("recipe", ["frozenlake", LAKE, {"env": {"type": "bandit"}, "credit": {"type": "grpo"}}])
def test_what_is_dumped_loads_again_as_the_same(recipe: Any, write: Any) -> None:
    settings = load_settings(
        recipe, ["learn.optim.lr=1e-5", "rollout.max_actions=null", "context.system_prompt='ä: #'"]
    )
    again = load_settings(write("config.yaml", dump_settings(settings)))
    assert again.model_dump() == settings.model_dump()
    assert again.recipe == settings.recipe
    assert dump_settings(again) == dump_settings(settings)


# --- plug-ins --------------------------------------------------------------------------------------------------------

PLUGIN = """
from turnwise.config.settings import Settings
from turnwise.credit.group import Grpo
from turnwise.envs.base import BaseEnv

class CoinParams(Settings):
    sides: int = 2

class Coin(BaseEnv):
    Params = CoinParams
    def reset(self, seed=None, *, split="train", dynamics_seed=None):
        return "heads or tails?"
    def step(self, action):
        return "done", 1.0, True, {"success": True}

class Half(Grpo):
    share: float = 0.5
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "coin_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("plugin")
def test_an_environment_and_a_credit_rule_of_ones_own() -> None:
    recipe = {"env": {"type": "coin_plugin:Coin", "sides": 3}, "credit": {"type": "coin_plugin:Half", "share": 0.25}}
    settings: Any = load_settings(recipe)
    assert (settings.env.sides, settings.credit.share) == (3, 0.25)
    assert "env.side: unknown setting. Did you mean 'sides'?" in problem(
        {"env": {"type": "coin_plugin:Coin", "side": 3}}
    )


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("coin_plugin:Dice", "module 'coin_plugin' has no 'Dice'"),
        ("no_such_module:Coin", "module 'no_such_module' cannot be imported"),
    ],
)
def test_plug_ins_that_do_not_work_are_explained(name: str, words: str) -> None:
    assert words in problem({"env": {"type": name}})
    assert words in problem({**LAKE, "credit": {"type": name}})


def test_another_type_starts_its_section_anew() -> None:
    settings = load_settings("frozenlake", ["credit.type=grpo", "rollout.group_size=4", "learn.critic.type=none"])
    assert settings.credit.model_dump() == {"type": "grpo"}
    assert settings.learn.critic.type == "none"
    # The same type given again keeps what the recipe says beside it.
    kept = load_settings("frozenlake", ["credit.type=bi_level_gae"])
    assert kept.credit == load_settings("frozenlake").credit


def test_an_environment_without_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_env.py").write_text(
        "from turnwise import BaseEnv\n"
        "class Bare(BaseEnv):\n"
        "    def reset(self, seed=None, *, split='train', dynamics_seed=None):\n        return 'x'\n"
        "    def step(self, action):\n        return 'x', 0.0, True, {}\n"
    )
    (tmp_path / "broken_env.py").write_text("class Bare(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_settings({"env": {"type": "bare_env:Bare"}}).env.type == "bare_env:Bare"
    with pytest.raises(ConfigError, match=r"env\.type: environment 'broken_env:Bare'.*cannot be imported"):
        load_settings({"env": {"type": "broken_env:Bare"}})


def test_another_kind_of_buffer_keeps_the_other_settings_of_the_buffer() -> None:
    """Unlike a choice with keys of its own, where another type begins anew."""
    recipe = {"env": {"type": "bandit"}, "buffer": {"type": "memory", "train_batch_size": 64}}
    settings = load_settings(recipe, ["buffer.type=sqlite"])
    assert (settings.buffer.type, settings.buffer.train_batch_size) == ("sqlite", 64)


def test_the_priority_of_a_buffer_is_a_choice_with_keys_of_its_own() -> None:
    settings = load_settings(
        {"env": {"type": "bandit"}, "buffer": {"priority": {"type": "linear_decay", "decay": 3.0}}}
    )
    assert settings.buffer.model_dump()["priority"] == {"type": "linear_decay", "decay": 3.0}
    assert load_settings({"env": {"type": "bandit"}}).buffer.model_dump()["priority"] == {"type": "newest"}
    with pytest.raises(ConfigError, match=r"buffer\.priority"):
        load_settings({"env": {"type": "bandit"}, "buffer": {"priority": {"type": "nope"}}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: ${env:HOME}", "expected the name of a recipe or a file as it is"),
        ("extends: ${oc.env:HOME}", "expected the name of a recipe or a file as it is"),
        (f"extends: {'x' * 5000}", "5,000 characters, is no name"),
        (f"extends: {'/x' * 5000}", "10,000 characters, is no name"),
        ('extends: "a\\0b"', "is no name"),
        (f"run: {{seed: 1{'0' * 5000}}}", "not valid YAML"),
        ("1: 2", "env.type is missing"),
    ],
)
def test_hostile_files_are_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "hostile.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_settings(tmp_path / "hostile.yaml")


@pytest.mark.parametrize("word", ["[=1", "a={", "a=[*b]", "=", "env[0].type=x"])
def test_hostile_overrides_are_refused_in_words(word: str) -> None:
    with pytest.raises(ConfigError):
        load_settings("frozenlake", [word])

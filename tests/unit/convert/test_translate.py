"""Files of other projects become settings of our own, key by key, and what cannot be followed is named."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from turnwise.config.formats import CONFIG_FORMATS, Translation
from turnwise.config.load import load_settings, load_with_translation
from turnwise.convert.load import load_formats
from turnwise.errors import ConfigError, TurnwiseError

FILES = Path(__file__).parents[2] / "documents" / "files"
EXAMPLES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(FILES.glob("*.yaml"))}
RAGEN = {
    "model_path": "tiny",
    "es_manager": {"train": {"env_groups": 4, "group_size": 2, "env_configs": {"tags": ["SimpleSokoban"]}}},
    "algorithm": {"adv_estimator": "gae"},
}


def translated(raw: dict[str, Any]) -> Translation:
    config_format = CONFIG_FORMATS.detect(raw)
    assert config_format is not None
    return config_format.convert(OmegaConf.create(raw))


def settings_of(raw: dict[str, Any]) -> dict[str, Any]:
    found = translated(raw)
    assert not found.problems
    return dict(found.settings)


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("multi_turn", "align-anything"),
        ("environment_groups", "RAGEN"),
        ("environment", "align-anything"),
        ("ragen_compatible", "RAGEN"),
        ("agent_trainer", "AgentTrainer"),
        ("step_wise_alfworld", "Trinity-RFT"),
    ],
)
def test_a_file_is_recognized_by_its_sections(name: str, format_name: str) -> None:
    found = CONFIG_FORMATS.detect(EXAMPLES[name])
    assert found is not None
    assert found.name == format_name


@pytest.mark.parametrize("raw", [{"env": {"type": "bandit"}}, {"model": {}, "buffer": {}}, {"nonsense": 1}, {}])
def test_a_file_with_our_keys_or_unknown_ones_is_in_no_format(raw: dict[str, Any]) -> None:
    assert CONFIG_FORMATS.detect(raw) is None


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"train_cfg": {"multi_turn": True}}, "It looks like a file of align-anything"),
        ({"exploerer": {}, "synchroniser": {}}, "It looks like a file of Trinity-RFT"),
        ({"nonsense": 1}, "Files of align-anything, RAGEN, AgentTrainer, verl, Trinity-RFT are understood"),
    ],
)
def test_a_file_with_unknown_keys_names_the_project_it_looks_like(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings(raw)
    assert "docs/coming_from.md" in str(caught.value)


def test_two_environments_become_one_and_a_mixed_one_that_is_talked_to_alike() -> None:
    raw = {**EXAMPLES["environment_groups"], "agent_proxy": {"max_turn": 4, "enable_think": True}}
    found = settings_of(raw)
    assert found["env.type"] == "frozen_lake"
    assert found["rollout.groups"] == 1
    assert found["mix.Sokoban.env.type"] == "sokoban"
    assert found["mix.Sokoban.groups"] == 1
    assert found["mix.Sokoban.max_turns"] == 4
    assert found["mix.Sokoban.context.answer.type"] == "think_answer"


def test_groups_without_numbers_are_shared_out() -> None:
    raw = {"es_manager": {"train": {"env_groups": 5, "env_configs": {"tags": ["Bandit", "FrozenLake"]}}}}
    found = settings_of(raw)
    assert (found["rollout.groups"], found["mix.FrozenLake.groups"]) == (3, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_groups": [1]}, "one number for each of the 2 tags"),
        ({"n_groups": [1, 2]}, "their sum is not es_manager.train.env_groups = 2"),
        ({"tags": "FrozenLake"}, "expected a list of environments"),
        ({"tags": ["FrozenLak", "Sokoban"]}, "Did you mean 'FrozenLake'?"),
        ({"tags": [{"FrozenLake": 1}, "Sokoban"]}, "expected an environment's name"),
    ],
)
def test_tags_that_cannot_be_played_are_refused(change: dict[str, Any], words: str) -> None:
    raw = {"es_manager": {"train": {"env_groups": 2, "env_configs": {"tags": ["FrozenLake", "Sokoban"], **change}}}}
    assert words in "\n".join(translated(raw).problems)


@pytest.mark.parametrize(
    ("train", "credit", "critic", "env"),
    [
        ({"multi_turn": True}, None, "none", "frozen_lake"),
        ({"multi_turn": True, "use_reward_critic": True}, None, "model", "frozen_lake"),
        ({"multi_turn": True, "bi_level_gae": True}, "bi_level_gae", "value_head", "frozen_lake"),
        ({"multi_turn": True, "bi_level_gae": True, "use_reward_critic": True}, "bi_level_gae", "model", "frozen_lake"),
        ({"multi_turn": False}, "gae", "model", "prompts"),
        ({"gamma": 1.0}, "gae", "model", "prompts"),
    ],
)
def test_modes_load_the_models_that_the_documents_say(
    train: dict[str, Any], credit: str | None, critic: str, env: str
) -> None:
    found = settings_of({"train_cfgs": train})
    assert found.get("credit.type") == credit
    assert found["learn.critic.type"] == critic
    assert found["env.type"] == env
    assert ("reward.judge.type" in found) is (env == "prompts")


def test_several_turns_can_have_a_reward_model_beside_the_environment() -> None:
    train = {"multi_turn": True, "use_reward_model": True}
    found = settings_of({"train_cfgs": train, "model_cfgs": {"reward_model_name_or_path": "judge"}})
    assert found["reward.judge.type"] == "model"
    assert found["reward.judge.path"] == "judge"


@pytest.mark.parametrize(
    ("actor", "algorithm", "expected"),
    [
        ({"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"}, {}, ("loss", 0.01, "k3")),
        ({"use_kl_loss": False, "kl_loss_coef": 0.01}, {}, None),
        ({}, {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.02}, "kl_penalty": "kl"}, ("reward", 0.02, "k1")),
        ({}, {"kl_ctrl": {"kl_coef": 0.02}}, None),
    ],
)
def test_one_price_of_distance(actor: dict[str, Any], algorithm: dict[str, Any], expected: Any) -> None:
    raw = {**RAGEN, "actor_rollout_ref": {"actor": actor}, "algorithm": {"adv_estimator": "grpo", **algorithm}}
    found = settings_of(raw)
    price = (
        tuple(found[f"learn.kl.{name}"] for name in ("type", "coef", "estimator")) if "learn.kl.type" in found else None
    )
    assert price == expected


def test_the_share_of_groups_that_is_trained_on_is_a_filter() -> None:
    raw = {**RAGEN, "actor_rollout_ref": {"rollout": {"rollout_filter_ratio": 0.25, "rollout_filter_type": "std"}}}
    found = settings_of(raw)
    assert (found["reward.filter.type"], found["reward.filter.share"]) == ("top_k", 0.25)
    assert found["reward.filter.by"] == "reward_std"
    raw["actor_rollout_ref"]["rollout"]["rollout_filter_ratio"] = 1
    assert settings_of(raw)["reward.filter.type"] == "none"


def test_settings_of_custom_environments_have_our_names() -> None:
    symbols = {"0": "W", "5": "A"}
    config = {"dim_x": 7, "dim_y": 8, "num_boxes": 2, "max_steps": 100, "grid_lookup": symbols}
    raw = {
        **RAGEN,
        "custom_envs": {"SimpleSokoban": {"env_type": "sokoban", "max_actions_per_traj": 9, "env_config": config}},
    }
    found = settings_of(raw)
    assert (found["env.rows"], found["env.columns"], found["env.num_boxes"]) == (7, 8, 2)
    assert (found["env.symbols.wall"], found["env.symbols.player"]) == ("W", "A")
    assert found["rollout.max_actions"] == 9
    assert "env.max_steps" not in found


def test_agents_get_their_own_environments() -> None:
    found = settings_of(EXAMPLES["agent_trainer"])
    assert (found["env.type"], found["rollout.groups"]) == ("frozen_lake", 2)
    assert (found["mix.SimpleSokoban_1.env.type"], found["mix.SimpleSokoban_1.groups"]) == ("sokoban", 2)
    assert found["rollout.group_size"] == 1
    assert found["learn.steps"] == 10
    assert found["learn.critic.type"] == "model"


def test_step_wise_training_of_households(tmp_path: Path) -> None:
    raw = yaml.safe_load(yaml.safe_dump(EXAMPLES["step_wise_alfworld"]))
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"game_file": "a.tw-pddl"}\n')
    raw["buffer"]["explorer_input"]["taskset"]["path"] = str(folder)
    found = settings_of(raw)
    assert found["env.type"] == "alfworld"
    assert found["env.games"] == str(folder / "train.jsonl")
    assert found["rollout.workflow"] == "reward_propagation_environment"
    assert (found["rollout.groups"], found["rollout.group_size"], found["rollout.max_turns"]) == (16, 16, 30)
    assert found["credit.type"] == "multi_step_grpo"
    assert (found["sync.style"], found["sync.interval"], found["loop.type"]) == ("dynamic_by_explorer", 2, "pipelined")
    assert (found["buffer.train_batch_size"], found["buffer.reuse_cooldown"]) == (7680, 1)
    assert found["rollout.max_concurrent"] == 32
    assert found["tasks.epochs"] == 20


@pytest.mark.parametrize("path", ["9" * 400, "a\0b"])
def test_a_name_that_no_file_can_have_is_passed_on(path: str) -> None:
    raw = yaml.safe_load(yaml.safe_dump(EXAMPLES["step_wise_alfworld"]))
    raw["buffer"]["explorer_input"]["taskset"]["path"] = path
    assert settings_of(raw)["env.games"] == path


@pytest.mark.parametrize(
    ("algorithm", "credit", "loss", "critic"),
    [
        ("ppo", "gae", None, "model"),
        ("grpo", "grpo", None, None),
        ("gspo", "grpo", "gspo", None),
        ("opmd", "opmd", "opmd", None),
        ("gigpo", "gigpo", None, None),
    ],
)
def test_an_algorithm_is_a_rule_a_loss_and_a_critic(
    algorithm: str, credit: str, loss: str | None, critic: str | None
) -> None:
    taskset = {"default_workflow_type": "frozen_lake_workflow"}
    raw = {
        "algorithm": {"algorithm_type": algorithm},
        "buffer": {"explorer_input": {"taskset": taskset}},
        "explorer": {},
    }
    found = settings_of(raw)
    assert (found["credit.type"], found.get("learn.loss.type"), found.get("learn.critic.type")) == (
        credit,
        loss,
        critic,
    )


@pytest.mark.parametrize(
    ("raw", "typo", "meant"),
    [
        ({"train_cfgs": {"mutli_turn": True}}, "train_cfgs.mutli_turn", "train_cfgs.multi_turn"),
        ({"es_manager": {"train": {"group_sizes": 2}}}, "es_manager.train.group_sizes", "es_manager.train.group_size"),
        (
            {"actor_rollout_ref": {"actor": {"optim": {"learning_rate": 1}}}},
            "actor_rollout_ref.actor.optim.learning_rate",
            "",
        ),
        (
            {"actor_rollout_ref": {"actor": {"ppo_epoch": 1}}},
            "actor_rollout_ref.actor.ppo_epoch",
            "actor_rollout_ref.actor.ppo_epochs",
        ),
        ({"agent": {"max_turns": 3}}, "agent.max_turns", "agent.max_turn"),
        (
            {"explorer": {"max_timeouts": 3}, "buffer": {}},
            "explorer.max_timeouts",
            "explorer.max_timeout",
        ),
    ],
)
def test_a_typo_is_named_with_the_closest_key(raw: dict[str, Any], typo: str, meant: str) -> None:
    problems = [problem for problem in translated(raw).problems if problem.startswith(f"{typo}:")]
    assert len(problems) == 1
    assert meant in problems[0]
    assert "has no such key" in problems[0]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"bnb_cfgs": {"use_bnb": True}}, "quantized weights are not there"),
        ({"model_cfgs": {"top_p": 0.9}}, "other probabilities than tokens were drawn by"),
        ({"train_cfgs": {"multi_turn": "maybe"}}, "expected true or false"),
        ({"train_cfgs": {"advantage_estimator": "magic"}}, "expected an estimator: one of gae"),
        ({"train_cfgs": {"max_turn": 3}, "agent_proxy": {"max_turn": 5}}, "agent_proxy.max_turn = 5"),
        (
            {"train_cfgs": {"actor_lr": 1e-5, "learning_rate": 1e-6}},
            "train_cfgs.actor_lr asks for another learn.optim.lr",
        ),
        ({"train_cfgs": {"actor_lr": "${nowhere}"}}, ""),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(section: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(yaml.safe_dump(section))
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert words in str(caught.value)
    assert "docs/coming_from.md" in str(caught.value)


def test_a_problem_found_later_names_the_key_that_was_written() -> None:
    with pytest.raises(ConfigError, match=r"rollout.max_turns \(from train_cfgs.max_turn\): 0 given"):
        load_settings({"train_cfgs": {"multi_turn": True, "max_turn": 0}})


def test_references_are_followed_also_to_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_MODEL", "somewhere")
    file = tmp_path / "theirs.yaml"
    file.write_text(
        "model_path: ${oc.env:SOME_MODEL}\n"
        "ppo_mini_batch_size: ${mul:2,${es_manager.train.group_size}}\n"
        "actor_rollout_ref: {model: {path: '${model_path}'}, actor: {ppo_mini_batch_size: '${ppo_mini_batch_size}'}}\n"
        "es_manager: {train: {env_groups: 3, group_size: 4, env_configs: {tags: [Bandit]}}}\n"
        "algorithm: {adv_estimator: grpo}\n"
        "ctx_manager: {generation: {gen_config: {top_p: '${actor_rollout_ref.rollout.top_p}'}}}\n"
    )
    settings = load_settings(file)
    assert settings.model.path == "somewhere"
    assert settings.learn.minibatches == 2


def test_files_that_hydra_would_compose_are_read_where_they_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model_path: tiny\nes_manager: {train: {group_size: 3, env_groups: 4}}\n")
    (tmp_path / "envs.yaml").write_text("custom_envs: {Mine: {env_type: bandit, max_actions_per_traj: 2}}\n")
    top = tmp_path / "_1_mine.yaml"
    top.write_text(
        "defaults: [base, envs, elsewhere, _self_]\n"
        "algorithm: {adv_estimator: grpo}\n"
        "es_manager: {train: {env_configs: {tags: [Mine]}, group_size: 5}}\n"
    )
    settings = load_settings(top)
    assert settings.env.type == "bandit"
    assert (settings.rollout.group_size, settings.rollout.groups, settings.rollout.max_actions) == (5, 4, 2)


def test_overrides_may_speak_either_language_on_either_file(tmp_path: Path) -> None:
    file = tmp_path / "theirs.yaml"
    file.write_text(yaml.safe_dump(RAGEN))
    overrides = ["es_manager.train.group_size=6", "learn.steps=7", "trainer.test_freq=3"]
    settings, translation = load_with_translation(file, overrides)
    assert (settings.rollout.group_size, settings.learn.steps, settings.eval.every) == (6, 7, 3)
    assert translation is not None
    ours = load_settings(
        "frozenlake", ["train_cfgs.max_turn=4", "learning_rate=0.5", "bi_level_gae=true", "learn.steps=2"]
    )
    assert (ours.rollout.max_turns, ours.learn.optim.lr, ours.learn.steps) == (4, 0.5, 2)
    explored = load_settings("frozenlake", ["explorer.max_timeout=9", "explorer.runner_per_model=3"])
    assert (explored.rollout.episode_timeout_s, explored.rollout.max_concurrent) == (9, 3)
    # Nothing follows from what single keys leave out.
    plain = load_settings("frozenlake")
    assert ours.env == plain.env
    assert ours.learn.critic == plain.learn.critic


def test_a_typo_in_an_override_of_a_file_is_one_of_its_project() -> None:
    with pytest.raises(
        ConfigError, match=r"trainer.totl_epochs: 3 given; RAGEN has no such key. Did you mean 'trainer"
    ):
        load_settings(RAGEN, ["trainer.totl_epochs=3"])


def test_every_row_says_what_becomes_of_its_key() -> None:
    for config_format in load_formats():
        for row in config_format.rows:
            assert row.to or row.note, row.key
            assert row.kind != "mapped" or row.convert is not None or row.to, row.key


def test_no_two_rows_are_about_one_key() -> None:
    for config_format in load_formats():
        keys = [row.key for row in config_format.rows]
        assert sorted(keys) == sorted(set(keys))


MUTATED_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    3.5,
    "text",
    "",
    [],
    [1, "two"],
    {},
    {"a": 1},
    "${x}",
    float("inf"),
    10**12,
]


def mutate(raw: Any, rng: random.Random) -> Any:
    """A copy with one to three keys renamed, removed, or given another value."""
    copy = yaml.safe_load(yaml.safe_dump(raw))
    for _ in range(rng.randint(1, 3)):
        places = list(_places(copy))
        if not places:
            break
        section, key = rng.choice(places)
        value = section.pop(key)
        change = rng.choice(("value", "name", "gone"))
        if change == "value":
            section[key] = rng.choice(MUTATED_VALUES)
        elif change == "name":
            section[f"{key}{rng.choice('sxy')}"] = value
    return copy


def _places(raw: Any) -> Any:
    if isinstance(raw, dict):
        for key, value in raw.items():
            yield raw, key
            yield from _places(value)


@pytest.mark.slow
def test_two_thousand_mutated_files_are_read_or_refused_in_words() -> None:
    rng = random.Random(0)
    sources = [*EXAMPLES.values(), RAGEN]
    num_read = num_refused = 0
    for _ in range(2_000):
        raw = mutate(rng.choice(sources), rng)
        try:
            load_settings(raw)
            num_read += 1
        except TurnwiseError:
            num_refused += 1
    assert num_read > 300
    assert num_refused > 300

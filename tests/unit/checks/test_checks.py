"""Contradictions are refused, settings without effect are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.checks.settings import check_settings, find_unused_settings
from turnwise.checks.setup import validate_run
from turnwise.checks.stages import CHECKS, Check, Subject
from turnwise.config.load import dump_settings, load_settings
from turnwise.errors import ConfigError
from turnwise.rollout.env_specs import main_env
from turnwise.rollout.step_wise import RewardPropagationWorkflow, StepWiseRewardWorkflow

VALID = {"env": {"type": "frozen_lake"}, "learn": {"critic": {"type": "value_head"}}}


def test_a_valid_combination_passes_without_notes() -> None:
    settings = load_settings(VALID)
    check_settings(settings)
    assert find_unused_settings(settings) == []


CONTRADICTIONS = pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["credit.type=bi_level_gae", "learn.critic.type=none"],
            r"credit.type 'bi_level_gae' needs a critic.*learn.critic.type is 'none'",
        ),
        (["reward.shaping=score"], r"reward.shaping: 'score' given; expected 'package.module:function'"),
        (["reward.shaping=math:pi"], r"reward.shaping: 'math:pi' is 3.14.*, which cannot be called"),
        (["reward.shaping=nowhere_at_all:f"], r"reward.shaping: .*cannot be imported"),
        (["credit.type=gae", "learn.critic.type=none"], r"credit.type 'gae' needs a critic"),
        (["credit.type=grpo", "rollout.group_size=1"], r"rollout.group_size: 1 given; credit.type 'grpo' compares"),
        (["context.max_tokens=64", "context.max_response_tokens=64"], r"context.max_response_tokens: 64 given"),
        (["buffer.train_batch_size=3", "rollout.group_size=4"], r"rollout.group_size: 4 given; a group does not fit"),
        (["buffer.capacity=3", "rollout.group_size=4"], r"a group does not fit into buffer.capacity = 3"),
        (["tasks.num_tasks=7", "rollout.groups=8"], r"tasks.num_tasks: 7 given.*at least 8"),
        (
            ["tasks.num_tasks=8", "rollout.groups=4", "reward.filter={type: top_k, max_rounds: 3}"],
            r"at least 12",
        ),
        (["rollout.workflow=nope"], r"rollout.workflow: there is no workflow named 'nope'"),
        (["env.train={sise: 3}"], r"env.train.*sise"),
        (["env.train={size: many}"], r"env.train.*size"),
        (["mix.frozen_lake.env.type=bandit"], r"mix.frozen_lake: a tag must differ from env.type"),
        (
            ["reward.judge={type: model, path: tiny, beside_env: leave}"],
            r"beside_env: 'leave' given.*judge is never asked",
        ),
        (
            ["loop.type=pipelined", "sync.max_staleness=0", "sync.interval=2"],
            r"sync.max_staleness: 0 given; sync.interval = 2 and sync.offset = 0 let weights be 1 updates behind",
        ),
        (["buffer.offline=x.jsonl"], r"buffer.offline: a file given; run.mode 'both' does not learn from one"),
        (["run.mode=explore", "sync.method=checkpoint"], r"buffer.type: 'memory' given; .* Set buffer.type=sqlite"),
        (["run.mode=train", "buffer.type=sqlite"], r"sync.method: 'memory' given; .* Set sync.method=checkpoint"),
        (
            ["learn.parallel={type: ddp, ranks: 2}", "learn.device=cuda:1"],
            r"learn.device: 'cuda:1' given; learn.parallel.ranks = 2 need a device each",
        ),
        (
            ["learn.parallel.type=fsdp", "learn.type=examples.plug_ins:SgdLearner"],
            r"learn.parallel.type: 'fsdp' given; learn.type 'examples.plug_ins:\w+' learns in one process",
        ),
        (
            ["cluster.type=ray", "learn.parallel.type=ddp", "learn.device=cuda"],
            r"learn.device: 'cuda' given; .* cluster.learner_gpus is 0",
        ),
        (
            ["cluster.type=ray", "learn.parallel.type=ddp", "cluster.learner_gpus=0.5"],
            r"cluster.learner_gpus: 0.5 given; with learn.parallel each rank needs GPUs of its own",
        ),
        (["engine.type=vllm"], r"engine.start: False and engine.urls: \[\] given; expected one of them"),
        (
            ["engine.type=vllm", "engine.start=true", "engine.urls=[http://a:1]"],
            r"engine.start: True and engine.urls: \['http://a:1'\] given; expected one of them",
        ),
        (
            ["engine.type=vllm", "engine.start=true", "engine.servers=3", "engine.devices=['0','1']"],
            r"engine.devices: 2 entries given; expected one for each of engine.servers = 3",
        ),
        (["cluster.type=ray", "buffer.type=memory"], r"buffer.type: 'memory' given; with cluster.type 'ray'"),
        (["rollout.isolation.type=ray"], r"rollout.isolation.type: 'ray' given; .* Set cluster.type=ray"),
        (["cluster.type=ray", "run.mode=eval"], r"run.mode: 'eval' given; cluster.type 'ray' runs explorers"),
        (
            ["engine.type=openai", "engine.url=http://here/v1"],
            r"engine.type: 'openai' given; it returns text without token ids and log-probs",
        ),
        (
            ["run.mode=train", "warm_start.type=endpoint", "warm_start.url=http://here/v1"],
            r"warm_start.type: 'endpoint' given; with run.mode 'train' two processes would ask it",
        ),
    ],
)


@CONTRADICTIONS
def test_contradictions_are_refused(overrides: list[str], words: str) -> None:
    settings = load_settings(VALID, overrides)
    with pytest.raises(ConfigError, match=words):
        check_settings(settings)


@pytest.mark.parametrize(
    "check",
    [check for check in CHECKS["settings"] if check.name.startswith("check_")],
    ids=lambda check: check.name,
)
def test_every_check_is_behind_a_contradiction_above(check: Check) -> None:
    """But those that need a class of the user's own, below."""

    def finds(overrides: list[str]) -> bool:
        try:
            return any(check.find(Subject(load_settings(VALID, overrides))) or ())
        except ConfigError:
            return True

    assert any(finds(overrides) for overrides, _ in CONTRADICTIONS.args[1])


def test_a_rule_must_say_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent_rule.py").write_text("class Silent:\n    needs_values = False\n    def __call__(self): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^credit.type: 'silent_rule:Silent' has no needs_groups, needs_greedy; "):
        check_settings(load_settings(VALID, ["credit.type=silent_rule:Silent"]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["learn.critic.type=model"],
        ["learn.critic.type=none", "credit.type=grpo", "rollout.group_size=2"],
        ["context.max_tokens=64", "context.max_response_tokens=63"],
        ["buffer.train_batch_size=4", "rollout.group_size=4"],
        ["buffer.train_batch_size=1", "buffer.unit=groups"],
        ["buffer.capacity=4", "rollout.group_size=4"],
        ["tasks.num_tasks=8", "rollout.groups=8"],
        ["rollout.group_size=1"],
        ["env.train={size: 3}"],
        ["learn.parallel={type: ddp, ranks: 1}", "learn.device=cuda:1"],
        ["learn.parallel={type: fsdp, ranks: 4}", "learn.device=cuda"],
        ["cluster={type: ray, learner_gpus: 1}", "learn.parallel.type=ddp", "learn.device=cuda"],
        ["cluster={type: ray, learner_gpus: 0.5}"],
    ],
)
def test_the_other_side_of_each_border_passes(overrides: list[str]) -> None:
    settings = load_settings(VALID, overrides)
    before = dump_settings(settings)
    check_settings(settings)
    assert dump_settings(settings) == before


def test_several_contradictions_come_in_one_message() -> None:
    settings = load_settings(VALID, ["credit.type=gae", "learn.critic.type=none", "context.max_tokens=8"])
    with pytest.raises(ConfigError, match=r"(?s)Invalid configuration:.*credit.type.*context.max_response_tokens"):
        check_settings(settings)


@pytest.mark.parametrize(
    ("key", "with_note", "without"),
    [
        ("learn.critic.type", ["credit.type=grpo"], ["credit.type=gae"]),
        ("context.window_turns", ["context.window_turns=2"], ["context.window_turns=2", "context.window=sliding"]),
        (
            "learn.optim.final_lr_share",
            ["learn.optim.final_lr_share=0.5"],
            ["learn.optim.final_lr_share=0.5", "learn.optim.schedule=linear"],
        ),
        (
            "watch.min_spread_share",
            ["watch.min_spread_share=0.2", "rollout.group_size=1"],
            ["watch.min_spread_share=0.2"],
        ),
        (
            "watch.max_reference_kl",
            ["watch.max_reference_kl=1.0"],
            ["watch.max_reference_kl=1.0", "learn.kl.type=loss"],
        ),
        (
            "sync.max_probe_gap",
            ["sync.max_probe_gap=0.1"],
            ["sync.max_probe_gap=0.1", "engine.type=vllm", "engine.start=true"],
        ),
        (
            "engine.servers",
            ["engine.type=vllm", "engine.urls=[http://127.0.0.1:1]", "engine.servers=2"],
            ["engine.type=vllm", "engine.start=true", "engine.servers=2"],
        ),
        ("tasks.selector", ["tasks.selector=random"], ["tasks.selector=random", "tasks.num_tasks=99"]),
        (
            "tasks.target_success",
            ["tasks.target_success=0.4"],
            ["tasks={target_success: 0.4, selector: difficulty, num_tasks: 99}"],
        ),
        ("buffer.unit", ["buffer.unit=tokens"], ["buffer.unit=tokens", "buffer.train_batch_size=99"]),
        (
            "buffer.priority.decay",
            ["buffer.priority={type: linear_decay, decay: 1.0}"],
            ["buffer.priority={type: linear_decay, decay: 1.0}", "buffer.reuse_cooldown=1"],
        ),
        (
            "rollout.workflow_args",
            ["rollout.workflow_args.max_env_steps=3"],
            ["rollout.workflow_args.max_env_steps=3", "rollout.workflow=step_wise_environment"],
        ),
        (
            "buffer.priority.use_count_limit",
            ["buffer.priority={type: decay_limit_randomization, use_count_limit: 1}"],
            ["buffer.priority={type: decay_limit_randomization, use_count_limit: 1}", "buffer.reuse_cooldown=1"],
        ),
        ("model.tiny", ["model.tiny.num_layers=1", "model.path=/some/folder"], ["model.tiny.num_layers=1"]),
        (
            "mix.other.context.window_turns",
            ["mix.other={env: {type: bandit}, context: {window_turns: 2}}"],
            ["mix.other={env: {type: bandit}, context: {window_turns: 2, window: sliding}}"],
        ),
        (
            "context.answer.max_actions_per_turn",
            ["context.answer={type: plain, max_actions_per_turn: 2}"],
            ["context.answer={type: think_answer, max_actions_per_turn: 2}"],
        ),
        (
            "reward.normalisation.grouping",
            ["reward.normalisation.grouping=batch"],
            ["reward.normalisation={grouping: batch, method: mean}"],
        ),
        (
            "credit.tau",
            ["credit={type: opmd, tau: 0.5}", "learn.critic.type=none"],
            ["credit={type: opmd, tau: 0.5, baseline: logavgexp}", "learn.critic.type=none"],
        ),
        (
            "learn.kl.horizon",
            ["learn.kl={type: reward, horizon: 99}"],
            ["learn.kl={type: reward, horizon: 99, target: 0.1}"],
        ),
        (
            "learn.parallel.cpu_offload",
            ["learn.parallel={type: fsdp, cpu_offload: true}", "learn.device=cpu"],
            ["learn.parallel={type: fsdp, cpu_offload: true}"],
        ),
    ],
)
def test_a_setting_without_effect_is_named(key: str, with_note: list[str], without: list[str]) -> None:
    (note,) = find_unused_settings(load_settings(VALID, with_note))
    assert note.startswith(f"{key} ")
    assert find_unused_settings(load_settings(VALID, without)) == []


@pytest.mark.parametrize(
    ("env", "note"),
    [
        ({"type": "metamathqa", "path": "x", "num_events": 2}, "env.num_events has no effect while env.path is set."),
        (
            {"type": "metamathqa", "path": "x", "held_out": "wording"},
            "env.held_out has no effect while env.path is set.",
        ),
        ({"type": "metamathqa", "answer_field": "a"}, "env.answer_field has no effect while env.path is null."),
        (
            {"type": "metamathqa", "path": "x", "eval_path": "y", "eval_share": 0.3},
            "env.eval_share has no effect while env.eval_path is set.",
        ),
        (
            {"type": "metamathqa", "max_attempts": 1, "decay": 0.9},
            "env.decay has no effect while env.max_attempts is 1.",
        ),
        ({"type": "countdown", "path": "x", "max_target": 50}, "env.max_target has no effect while env.path is set."),
        ({"type": "prompts", "prompt_field": "q"}, "env.prompt_field has no effect while env.path is null."),
        ({"type": "alfworld", "games": "x", "num_objects": 4}, "env.num_objects has no effect while env.games is set."),
        (
            {"type": "alfworld", "game_file": "x", "eval_share": 0.5},
            "env.eval_share has no effect while env.game_file is set.",
        ),
        (
            {"type": "webshop", "goal": {"asin": "B1"}, "eval_share": 0.5},
            "env.eval_share has no effect while env.goal is set.",
        ),
    ],
)
def test_settings_of_an_environment_without_effect_are_named(env: dict[str, object], note: str) -> None:
    (name,) = [key for key in env if f"env.{key} has" in note]
    settings = load_settings({**VALID, "env": env})
    assert find_unused_settings(settings) == [note]
    assert find_unused_settings(load_settings({**VALID, "env": {key: env[key] for key in env if key != name}})) == []
    in_mix = load_settings({**VALID, "mix": {"other": {"env": env}}})
    assert find_unused_settings(in_mix) == [note.replace("env.", "mix.other.env.")]


def test_a_class_of_ones_own_names_its_idle_settings_beside_those_of_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle_buffer.py").write_text(
        "from turnwise.config.settings import Settings\n"
        "class Own:\n"
        "    class Params(Settings):\n"
        "        own_number: int = 2\n"
        "        def idle_settings(self, path, run):\n"
        "            return self.idle('own_number', why=f'with {path}.capacity {self.capacity}: {run.recipe}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = load_settings(VALID, ["buffer={type: 'idle_buffer:Own', own_number: 3, unit: tokens}"])
    assert find_unused_settings(settings) == [
        "buffer.own_number has no effect with buffer.capacity None: custom.",
        "buffer.unit 'tokens' has no effect without buffer.train_batch_size.",
    ]


@pytest.mark.parametrize(
    ("overrides", "is_changed"),
    [([], False), (["buffer.priority.type=linear_decay"], True), (["buffer.capacity=50"], False)],
)
def test_a_section_in_which_a_class_is_chosen_is_changed_where_anything_in_it_is(
    overrides: list[str], is_changed: bool
) -> None:
    assert load_settings(VALID, overrides).buffer.changed("priority") == ["priority"] * is_changed


def test_a_file_beside_the_settings_of_drawn_tasks_is_played(tmp_path: Path) -> None:
    """A recipe's other settings, and the defaults that a resolved file spells out, do not keep a user's file out."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(f'{{"nums": [{number}, 4, 6], "target": {number}}}' for number in range(40)))
    settings = load_settings("countdown", [f"env.path={rows}"])
    check_settings(settings)
    assert " 4 6 Target: " in main_env(settings).make("train").reset(0)


@pytest.mark.parametrize("overrides", [[], ["model.path=/some/folder"], ["context.window=single_turn"]])
def test_the_resolved_file_of_a_run_has_no_notes_that_its_recipe_had_not(overrides: list[str], tmp_path: Path) -> None:
    """The resolved file spells out every default; a default that was written down was not chosen."""
    settings = load_settings(VALID, overrides)
    (tmp_path / "config.yaml").write_text(dump_settings(settings))
    assert find_unused_settings(load_settings(str(tmp_path / "config.yaml"))) == find_unused_settings(settings) == []


# --- workflows of one's own -------------------------------------------------------------------------------------------


def score(prompt: str, response: str) -> float:
    return 1.0


class NoReward(StepWiseRewardWorkflow):
    def step(self, step_num: int) -> bool:
        return False


class Whole(RewardPropagationWorkflow):
    arg_names = frozenset({"depth"})

    def step(self, step_num: int) -> bool:
        return False

    def reward(self, exps: object) -> float:
        return 1.0


class Bare:
    def run(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("score", "rollout.workflow: .*score' is <function score.* expected a class that extends turnwise.Workflow"),
        ("NoReward", "rollout.workflow: .*NoReward' has no reward, which its kind must have; write reward"),
        ("Bare", "rollout.workflow: .*Bare' is <class.* expected a class that extends turnwise.Workflow"),
    ],
)
def test_what_is_no_workflow_is_refused_before_anything_is_set_up(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_run(load_settings("frozenlake", {"rollout.workflow": f"{__name__}:{name}"}))


def test_arguments_of_a_workflow_are_checked_before_anything_is_set_up() -> None:
    own = {"rollout.workflow": f"{__name__}:Whole"}
    check_settings(load_settings("frozenlake", {**own, "rollout.workflow_args": {"depth": 3}}))
    with pytest.raises(
        ConfigError, match=r"rollout.workflow_args.dept: Whole takes no such argument. Did you mean 'depth'"
    ):
        validate_run(load_settings("frozenlake", {**own, "rollout.workflow_args": {"dept": 3}}))


def test_a_workflow_with_a_reward_of_its_own_needs_no_judge() -> None:
    prompts: dict[str, object] = {"env": {"type": "prompts"}, "rollout": {"workflow": f"{__name__}:Whole"}}
    prompts |= {"credit": {"type": "grpo"}, "context": {"answer": {"type": "plain"}}}
    check_settings(load_settings(prompts))

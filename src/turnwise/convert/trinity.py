"""Converters for files of Trinity-RFT: algorithm, buffer, explorer, synchronizer, trainer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.config.component import WORKFLOWS
from turnwise.config.formats import Native
from turnwise.convert.table import (
    IgnoredValue,
    KeyValue,
    SourceConfig,
    UnsupportedValue,
    as_bool,
    as_float,
    as_int,
    at_key,
    drop_none,
    one_of,
)
from turnwise.convert.verl import KL_ESTIMATORS

_TASKSET = "buffer.explorer_input.taskset"
_REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
_ALGORITHMS: dict[str, dict[str, object]] = {
    "ppo": {"credit.type": "gae", "learn.critic.type": "model"},
    "grpo": {"credit.type": "grpo"},
    "grpo_verl": {"credit.type": "grpo"},
    "dapo": {"credit.type": "grpo"},
    "multi_step_grpo": {"credit.type": "multi_step_grpo"},
    "gigpo": {"credit.type": "gigpo"},
    "reinforceplusplus": {"credit.type": "reinforce_pp"},
    "rloo": {"credit.type": "rloo"},
    "remax": {"credit.type": "remax"},
    "opmd": {"credit.type": "opmd", "learn.loss.type": "opmd"},
    "cispo": {"credit.type": "grpo", "learn.loss.type": "cispo"},
    "gspo": {"credit.type": "grpo", "learn.loss.type": "gspo"},
    "sapo": {"credit.type": "grpo", "learn.loss.type": "sapo"},
}
"""Algorithms as estimator, loss and critic."""
_ADVANTAGES = {
    "ppo": "gae",
    "grpo": "grpo",
    "step_wise_grpo": "multi_step_grpo",
    "gigpo": "gigpo",
    "opmd": "opmd",
    "rloo": "rloo",
    "reinforce": "reinforce",
    "reinforceplusplus": "reinforce_pp",
    "remax": "remax",
}
_LOSSES = {"ppo": "ppo_clip", "opmd": "opmd", "cispo": "cispo", "gspo": "gspo", "sapo": "sapo", "sft": "sft"}
_CREDIT_ARGUMENTS: dict[str, dict[str, str]] = {
    "gae": {"gamma": "gamma", "lam": "lam"},
    "gigpo": {"gamma": "gamma", "omega": "step_weight"},
    "multi_step_grpo": {
        "enable_step_norm": "step_norm",
        "std_cal_level": "std_level",
        "std_threshold": "std_threshold",
    },
    "opmd": {"opmd_baseline": "baseline", "tau": "tau"},
    "reinforce_pp": {"gamma": "gamma"},
}
_ENVS = {
    "step_wise_alfworld_workflow": "alfworld",
    "alfworld_workflow": "alfworld",
    "frozen_lake_workflow": "frozen_lake",
    "webshop_workflow": "webshop",
    "math_workflow": "metamathqa",
    "math_boxed_workflow": "metamathqa",
    "math_eval_workflow": "metamathqa",
    "simple_workflow": "prompts",
}
"""Workflows, which have aliases here, and the environments that they play; `async_` before them changes nothing."""
_ONE_TURN = ("metamathqa", "prompts", "countdown")
_FILES = {"alfworld": "games", "webshop": "goals", "metamathqa": "path", "prompts": "path", "countdown": "path"}
"""The setting of an environment that names its rows."""
_ROW_FIELDS = {
    "metamathqa": ("env.question_field", "env.answer_field"),
    "prompts": ("env.prompt_field", "env.response_field"),
}
"""The settings that name the columns of a prompt and of its answer."""
_TURN_ARGUMENTS = ("max_env_steps", "agent_max_steps", "max_turns", "max_steps")
_IGNORED_ARGUMENTS = ("use_base", "with_think", "format_score_coef", "use_openai_client", "enable_progress_bar")


def reuse_cooldown(value: Any) -> int:
    if as_float(value, "a number of seconds") < 0:
        raise UnsupportedValue("expected a number of seconds")
    return 1


def priority_type(given: KeyValue) -> Native:
    if given.source.get(f"{_REPLAY}.enable") is not True:
        raise IgnoredValue("replay_buffer.enable is not true: experiences are taken in their order")
    names = {"linear_decay": "linear_decay", "decay_limit_randomization": "decay_limit_randomization"}
    return {"buffer.priority.type": one_of(names, "a priority")(given.value)}


def replay_enabled(given: KeyValue) -> Native:
    """Their queue prefers the newest experiences if this is on; so does ours by default."""
    if not as_bool(given.value) or given.source.get(f"{_REPLAY}.priority_fn") is not None:
        return {}
    return {"buffer.priority.type": "linear_decay"}


def priority_argument(given: KeyValue) -> Native:
    kind = given.source.get(f"{_REPLAY}.priority_fn", default="linear_decay")
    name = given.key.rpartition(".")[2]
    if kind == "linear_decay" and name != "decay":
        raise IgnoredValue("linear_decay has a decay alone")
    return {f"buffer.priority.{name}": given.value}


def first_adapter(given: KeyValue) -> Native:
    if not isinstance(given.value, list) or len(given.value) != 1 or not isinstance(given.value[0], dict):
        raise UnsupportedValue("expected a list with one adapter")
    names = {"lora_rank": "rank", "rank": "rank", "lora_alpha": "alpha", "alpha": "alpha"}
    names["target_modules"] = "target_modules"
    adapter = {f"model.lora.{names[key]}": value for key, value in given.value[0].items() if key in names}
    return {"model.lora.type": "lora", **drop_none(adapter)}


def trinity_finish(source: SourceConfig, single: Native) -> Native:
    """The settings that several keys decide together. `single` are those of the rows."""
    if source.is_partial:
        # Nothing follows from what single keys leave out: no algorithm, no environment.
        return {**_convert_budgets(source), **(_sync_method(source) if source.has("synchronizer.sync_method") else {})}
    made: dict[str, object] = {
        **_convert_algorithm(source),
        **_convert_kl(source),
        **_convert_budgets(source),
        **_convert_env(source),
        **_convert_mode(source, single),
    }
    temperature = source.get(f"{_TASKSET}.rollout_args.temperature", "model.temperature")
    made |= drop_none({"rollout.temperature": temperature})
    return {**made, **_convert_length(source, {**single, **made})}


def _convert_algorithm(source: SourceConfig) -> Native:
    algorithm = one_of(_ALGORITHMS, "an algorithm that is there")
    parts = dict(source.read(algorithm, "algorithm.algorithm_type", default=_ALGORITHMS["ppo"]))
    advantage = source.read(one_of(_ADVANTAGES, "one that is there"), "algorithm.advantage_fn")
    loss = source.read(one_of(_LOSSES, "one that is there"), "algorithm.policy_loss_fn")
    parts |= drop_none({"credit.type": advantage, "learn.loss.type": loss})
    if parts["credit.type"] == "gae":
        parts |= _convert_critic(source)
    return parts | _credit_arguments(source, str(parts["credit.type"])) | _loss_arguments(source, parts)


def _convert_critic(source: SourceConfig) -> dict[str, object]:
    start = "trainer.trainer_config"
    critic = {
        "learn.critic.type": "model",
        "learn.critic.lr": source.get(f"{start}.critic.optim.lr"),
        "learn.critic.clip": source.get(f"{start}.critic.cliprange_value"),
        "learn.critic.warmup_steps": source.get(f"{start}.trainer.critic_warmup"),
    }
    return drop_none(critic)


def _credit_arguments(source: SourceConfig, estimator: str) -> dict[str, object]:
    start = "algorithm.advantage_fn_args"
    names = _CREDIT_ARGUMENTS.get(estimator, {})
    made = drop_none({f"credit.{ours}": source.get(f"{start}.{theirs}") for theirs, ours in names.items()})
    if estimator == "gigpo" and (norm := source.get(f"{start}.fnorm")) is not None:
        made["credit.scale_by_std"] = norm == "std"
    return made


def _loss_arguments(source: SourceConfig, parts: Native) -> dict[str, object]:
    start, loss = "algorithm.policy_loss_fn_args", parts.get("learn.loss.type", "ppo_clip")
    if loss == "opmd":
        return drop_none({"learn.loss.tau": source.get(f"{start}.tau")})
    both = source.get(f"{start}.clip_range")
    arguments = {
        "learn.loss.clip_low": source.get(f"{start}.clip_range_low", default=both),
        "learn.loss.clip_high": source.get(f"{start}.clip_range_high", default=both),
        "learn.loss.dual_clip": source.get(f"{start}.clip_ratio_c") if loss == "ppo_clip" else None,
    }
    return drop_none(arguments)


def _convert_kl(source: SourceConfig) -> Native:
    for kind, key in {"loss": "algorithm.kl_loss_fn", "reward": "algorithm.kl_penalty_fn"}.items():
        if source.get(key) == "none":
            continue
        coef = source.read(as_float, f"{key}_args.kl_coef", default=0)
        if coef > 0:
            estimator = source.read(one_of(KL_ESTIMATORS, "one that is there"), key, default="k2")
            return {"learn.kl.type": kind, "learn.kl.coef": coef, "learn.kl.estimator": estimator}
    return {}


def _convert_budgets(source: SourceConfig) -> Native:
    made: dict[str, object] = {}
    if source.get("model.max_model_len") is None:
        prompt = source.read(as_int, "model.max_prompt_tokens")
        if prompt is not None:
            made["context.max_tokens"] = prompt + source.read(as_int, "model.max_response_tokens", default=512)
    runners = source.read(as_int, "explorer.runner_per_model")
    if runners is not None:
        made["rollout.max_concurrent"] = runners * source.read(as_int, "explorer.rollout_model.engine_num", default=1)
    return made


def _convert_env(source: SourceConfig) -> Native:
    key = f"{_TASKSET}.default_workflow_type"
    name = source.get(key, "buffer.explorer_input.default_workflow_type")
    known = ", ".join(_ENVS)
    with at_key(key):
        if name is None:
            raise UnsupportedValue(f"a workflow says what is played; expected one of {known}, or package.module:Class")
        if not isinstance(name, str):
            raise UnsupportedValue("expected a workflow's name")
        spelling = name.removeprefix("async_")
        if spelling not in _ENVS and ":" not in name and "." not in name:
            raise UnsupportedValue(f"there is no such workflow here; expected one of {known}, or package.module:Class")
    if spelling not in _ENVS:
        return _own_workflow(source, name)
    env, workflow = _ENVS[spelling], WORKFLOWS.resolve_alias(spelling).name
    reward = source.get(f"{_TASKSET}.default_reward_fn_type", "buffer.explorer_input.default_reward_fn_type")
    if env == "prompts" and isinstance(reward, str) and reward.startswith("countdown"):
        env = "countdown"
    made: dict[str, object] = {"env.type": env, "rollout.workflow": workflow}
    made |= _convert_rows(source, env) | _workflow_arguments(source)
    if "env.games" in made and source.get("buffer.explorer_input.eval_tasksets") is None:
        # All games of the list are for training, as there.
        made["eval.episodes"] = 0
    if env in _ONE_TURN:
        made["rollout.max_turns"] = 1
    if env == "prompts":
        made |= {"context.answer.type": "plain", "reward.judge.type": "model"}
        made["reward.judge.path"] = None if "env.path" in made else "tiny"
    return made


def _own_workflow(source: SourceConfig, name: str) -> Native:
    """A workflow of the user's own plays its own environment, and finds its row in `raw_task`."""
    if ":" not in name:
        module, _, attribute = name.rpartition(".")
        name = f"{module}:{attribute}"
    arguments = {f"rollout.workflow_args.{k}": v for k, v in source.under(f"{_TASKSET}.workflow_args").items()}
    return {"rollout.workflow": name, **_convert_rows(source, "prompts"), "env.type": "prompts", **arguments}


def _convert_rows(source: SourceConfig, env: str) -> dict[str, object]:
    path = source.get(f"{_TASKSET}.path")
    field = source.get(f"{_TASKSET}.format.prompt_key")
    if field == "game_file":
        env = "alfworld"
    if path is None or env not in _FILES or not isinstance(path, str):
        return {}
    made = {f"env.{_FILES[env]}": _find_split(path, str(source.get(f"{_TASKSET}.split", default="train")))}
    if env not in _ROW_FIELDS:
        return {**made}
    prompt_field, answer_field = _ROW_FIELDS[env]
    answer = source.get(f"{_TASKSET}.format.response_key")
    return drop_none({**made, prompt_field: field, answer_field: answer, "env.eval_path": _find_eval_path(source)})


def _find_split(path: str, split: str) -> str:
    """A data set of theirs is a folder with one file for each split."""
    # A name that no file can have is reported when the file is read.
    with suppress(OSError, ValueError):
        for suffix in (".jsonl", ".json", ".parquet"):
            if (file := Path(path) / f"{split}{suffix}").is_file():
                return str(file)
    return path


def _find_eval_path(source: SourceConfig) -> str | None:
    sets = source.get("buffer.explorer_input.eval_tasksets")
    first = sets[0] if isinstance(sets, list) and sets else None
    path = first.get("path") if isinstance(first, Mapping) else None
    return _find_split(path, str(first.get("split", "test"))) if isinstance(path, str) and first else None


def _workflow_arguments(source: SourceConfig) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, value in source.under(f"{_TASKSET}.workflow_args").items():
        if value is None or name in _IGNORED_ARGUMENTS:
            continue
        if name in _TURN_ARGUMENTS:
            made["rollout.max_turns"] = value
        elif name == "env_max_steps":
            made["env.max_distance"] = value
        else:
            made[f"env.{name}"] = value
    return made


def _convert_mode(source: SourceConfig, single: Native) -> Native:
    """Explorer and trainer at the same time, in one process or in two that share a run directory."""
    if single.get("run.mode", "both") in ("explore", "train"):
        return {"sync.method": "checkpoint", "buffer.type": "sqlite"}
    if single.get("sync.style", "fixed") != "fixed" or single.get("sync.offset", 0) not in (0, None):
        return {**_sync_method(source), "loop.type": "pipelined"}
    return {"sync.offset": None, "sync.timeout_s": None}


def _sync_method(source: SourceConfig) -> Native:
    names = {"nccl": "memory", "memory": "memory", "checkpoint": "checkpoint"}
    method = source.read(one_of(names, "one that is there"), "synchronizer.sync_method", default="memory")
    return {"sync.method": method}


def _convert_length(source: SourceConfig, made: Native) -> Native:
    epochs = source.get("buffer.total_epochs")
    ratio = source.get("algorithm.optimizer.lr_warmup_steps_ratio")
    length: dict[str, object] = {}
    if epochs is not None and "learn.steps" not in made and "tasks.epochs" not in made:
        has_rows = any(made.get(f"env.{name}") for name in ("path", "games"))
        length["tasks.epochs" if has_rows else "learn.steps"] = epochs
    steps = {**made, **length}.get("learn.steps")
    if isinstance(ratio, int | float) and ratio > 0 and isinstance(steps, int):
        length["learn.optim.warmup_steps"] = round(ratio * steps)
    return length

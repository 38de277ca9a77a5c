"""What a file of Trinity-RFT says as a whole: the algorithm's parts, the world behind a workflow, epochs, processes.

In: the file, and what its single keys became. Out: the settings on which several keys decide together.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.config.component import WORKFLOWS
from turnwise.config.dialects.table import ForeignFile, Native, Refusal, choose, number, whole
from turnwise.config.dialects.verl import KL_ESTIMATORS

_TASKSET = "buffer.explorer_input.taskset"

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
"""Algorithms as a rule of credit, a loss and a critic."""
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
_WORLDS = {
    "step_wise_alfworld_workflow": "alfworld",
    "alfworld_workflow": "alfworld",
    "frozen_lake_workflow": "frozen_lake",
    "webshop_workflow": "webshop",
    "math_workflow": "metamathqa",
    "math_boxed_workflow": "metamathqa",
    "math_eval_workflow": "metamathqa",
    "simple_workflow": "prompts",
}
"""Workflows, which are spellings of ours, and the environments that they play; `async_` before them changes nothing."""
_ONE_TURN = ("metamathqa", "prompts", "countdown")
_FILES = {"alfworld": "games", "webshop": "goals", "metamathqa": "path", "prompts": "path", "countdown": "path"}
_TURN_ARGUMENTS = ("max_env_steps", "agent_max_steps", "max_turns", "max_steps")
_IDLE_ARGUMENTS = ("use_base", "with_think", "format_score_coef", "use_openai_client", "enable_progress_bar")


def finish(file: ForeignFile, single: Native) -> Native:
    """The settings that several keys decide together."""
    if file.is_partial:
        # Nothing follows from what single keys leave out: no algorithm, no world.
        return {**_budgets(file), **(_method(file) if file.has("synchronizer.sync_method") else {})}
    made: dict[str, object] = {
        **_algorithm(file),
        **_distance(file),
        **_budgets(file),
        **_world(file),
        **_processes(file, single),
    }
    temperature = file.get(f"{_TASKSET}.rollout_args.temperature", "model.temperature")
    if temperature is not None:
        made["rollout.temperature"] = temperature
    return {**made, **_length(file, {**single, **made})}


def _algorithm(file: ForeignFile) -> Native:
    name = file.get("algorithm.algorithm_type", default="ppo")
    try:
        parts = dict(choose(_ALGORITHMS, "an algorithm that is there")(name))
    except Refusal as refusal:
        raise Refusal(f"algorithm.algorithm_type: {refusal}") from refusal
    if (advantage := file.get("algorithm.advantage_fn")) is not None:
        parts["credit.type"] = _named("algorithm.advantage_fn", _ADVANTAGES, advantage)
    if (loss := file.get("algorithm.policy_loss_fn")) is not None:
        parts["learn.loss.type"] = _named("algorithm.policy_loss_fn", _LOSSES, loss)
    if parts["credit.type"] == "gae":
        parts |= _critic(file)
    return parts | _credit_arguments(file, str(parts["credit.type"])) | _loss_arguments(file, parts)


def _named(key: str, names: dict[str, str], value: Any) -> str:
    try:
        return choose(names, "one that is there")(value)
    except Refusal as refusal:
        raise Refusal(f"{key}: {refusal}") from refusal


def _critic(file: ForeignFile) -> dict[str, object]:
    start = "trainer.trainer_config"
    given = {
        "lr": file.get(f"{start}.critic.optim.lr"),
        "clip": file.get(f"{start}.critic.cliprange_value"),
        "warmup_steps": file.get(f"{start}.trainer.critic_warmup"),
    }
    found = {f"learn.critic.{name}": value for name, value in given.items() if value is not None}
    return {"learn.critic.type": "model", **found}


def _credit_arguments(file: ForeignFile, rule: str) -> dict[str, object]:
    made: dict[str, object] = {}
    for theirs, ours in _CREDIT_ARGUMENTS.get(rule, {}).items():
        if (value := file.get(f"algorithm.advantage_fn_args.{theirs}")) is not None:
            made[f"credit.{ours}"] = value
    if rule == "gigpo" and (norm := file.get("algorithm.advantage_fn_args.fnorm")) is not None:
        made["credit.scale_by_std"] = norm == "std"
    return made


def _loss_arguments(file: ForeignFile, parts: dict[str, object]) -> dict[str, object]:
    start, loss = "algorithm.policy_loss_fn_args", parts.get("learn.loss.type", "ppo_clip")
    both = file.get(f"{start}.clip_range")
    given = {
        "clip_low": file.get(f"{start}.clip_range_low", default=both),
        "clip_high": file.get(f"{start}.clip_range_high", default=both),
        "dual_clip": file.get(f"{start}.clip_ratio_c") if loss == "ppo_clip" else None,
    }
    if loss == "opmd":
        given = {"tau": file.get(f"{start}.tau")}
    return {f"learn.loss.{name}": value for name, value in given.items() if value is not None}


def _distance(file: ForeignFile) -> Native:
    for kind, key in {"loss": "algorithm.kl_loss_fn", "reward": "algorithm.kl_penalty_fn"}.items():
        name, coef = file.get(key), file.get(f"{key}_args.kl_coef")
        if coef is None or name == "none":
            continue
        try:
            price = number(coef)
        except Refusal as refusal:
            raise Refusal(f"{key}_args.kl_coef: {refusal}") from refusal
        if price > 0:
            estimator = _named(key, KL_ESTIMATORS, name or "k2")
            return {"learn.kl.type": kind, "learn.kl.coef": price, "learn.kl.estimator": estimator}
    return {}


def _budgets(file: ForeignFile) -> Native:
    prompt, reply = file.get("model.max_prompt_tokens"), file.get("model.max_response_tokens")
    made: dict[str, object] = {}
    if prompt is not None and file.get("model.max_model_len") is None:
        made["context.max_tokens"] = _whole(prompt, "model.max_prompt_tokens") + _whole(
            512 if reply is None else reply, "model.max_response_tokens"
        )
    runners = file.get("explorer.runner_per_model")
    if runners is not None:
        engines = file.get("explorer.rollout_model.engine_num", default=1)
        made["rollout.max_concurrent"] = _whole(runners, "explorer.runner_per_model") * _whole(
            engines, "explorer.rollout_model.engine_num"
        )
    return made


def _whole(value: Any, key: str) -> int:
    try:
        return whole(value)
    except Refusal as refusal:
        raise Refusal(f"{key}: {refusal}") from refusal


def _world(file: ForeignFile) -> Native:
    key = f"{_TASKSET}.default_workflow_type"
    name = file.get(key, "buffer.explorer_input.default_workflow_type")
    if name is None:
        raise Refusal(
            f"{key}: a workflow says what is played; expected one of {', '.join(_WORLDS)}, or package.module:Class"
        )
    if not isinstance(name, str):
        raise Refusal(f"{key}: expected a workflow's name")
    known = name.removeprefix("async_")
    if known not in _WORLDS:
        return _own_workflow(file, key, name)
    env, workflow = _WORLDS[known], WORKFLOWS.unalias(known).name
    reward = file.get(f"{_TASKSET}.default_reward_fn_type", "buffer.explorer_input.default_reward_fn_type")
    if env == "prompts" and isinstance(reward, str) and reward.startswith("countdown"):
        env = "countdown"
    made: dict[str, object] = {"env.type": env, "rollout.workflow": workflow}
    made |= _rows(file, env) | _workflow_arguments(file)
    if "env.games" in made and file.get("buffer.explorer_input.eval_tasksets") is None:
        # All games of the list are for training, as there.
        made["eval.episodes"] = 0
    if env in _ONE_TURN:
        made["rollout.max_turns"] = 1
    if env == "prompts":
        made |= {"context.answer.type": "plain", "reward.judge.type": "model"}
        made["reward.judge.path"] = None if "env.path" in made else "tiny"
    return made


def _own_workflow(file: ForeignFile, key: str, name: str) -> Native:
    """A workflow of the user's own brings its own world; what it is given as rows, it finds in `raw_task`."""
    module, dot, attribute = name.rpartition(".")
    if ":" not in name and dot:
        name = f"{module}:{attribute}"
    elif ":" not in name:
        known = ", ".join(_WORLDS)
        raise Refusal(f"{key}: there is no such workflow here; expected one of {known}, or package.module:Class")
    arguments = {f"rollout.workflow_args.{k}": v for k, v in file.under(f"{_TASKSET}.workflow_args").items()}
    return {"rollout.workflow": name, **_rows(file, "prompts"), "env.type": "prompts", **arguments}


def _rows(file: ForeignFile, env: str) -> dict[str, object]:
    path = file.get(f"{_TASKSET}.path")
    field = file.get(f"{_TASKSET}.format.prompt_key")
    if field == "game_file":
        env = "alfworld"
    if path is None or env not in _FILES or not isinstance(path, str):
        return {}
    made: dict[str, object] = {
        f"env.{_FILES[env]}": _split_file(path, str(file.get(f"{_TASKSET}.split", default="train")))
    }
    answer = file.get(f"{_TASKSET}.format.response_key")
    if env == "metamathqa":
        made |= {} if field is None else {"env.question_field": field}
        made |= {} if answer is None else {"env.answer_field": answer}
    if env == "prompts":
        made |= {} if field is None else {"env.prompt_field": field}
        made |= {} if answer is None else {"env.response_field": answer}
    if env in ("prompts", "metamathqa") and (held_out := _first_eval_path(file)) is not None:
        made["env.eval_path"] = held_out
    return made


def _split_file(path: str, split: str) -> str:
    """A data set of theirs is a folder with one file for each split."""
    # A name that no file can have is told by whoever reads it.
    with suppress(OSError, ValueError):
        for suffix in (".jsonl", ".json", ".parquet"):
            if (file := Path(path) / f"{split}{suffix}").is_file():
                return str(file)
    return path


def _first_eval_path(file: ForeignFile) -> str | None:
    sets = file.get("buffer.explorer_input.eval_tasksets")
    first = sets[0] if isinstance(sets, list) and sets else None
    path = first.get("path") if isinstance(first, dict) else None
    return _split_file(path, str(first.get("split", "test"))) if isinstance(path, str) and first else None


def _workflow_arguments(file: ForeignFile) -> dict[str, object]:
    made: dict[str, object] = {}
    for name, value in file.under(f"{_TASKSET}.workflow_args").items():
        if value is None or name in _IDLE_ARGUMENTS:
            continue
        if name in _TURN_ARGUMENTS:
            made["rollout.max_turns"] = value
        elif name == "env_max_steps":
            made["env.max_distance"] = value
        else:
            made[f"env.{name}"] = value
    return made


def _processes(file: ForeignFile, single: Native) -> Native:
    """Explorer and trainer at the same time, in one process or in two that meet in a run directory."""
    mode = single.get("run.mode", "both")
    if mode in ("explore", "train"):
        return {"sync.method": "checkpoint", "buffer.type": "sqlite"}
    offset = single.get("sync.offset", 0)
    if single.get("sync.style", "fixed") != "fixed" or offset not in (0, None):
        return {**_method(file), "loop.type": "pipelined"}
    return {"sync.offset": None, "sync.timeout_s": None}


def _method(file: ForeignFile) -> Native:
    names = {"nccl": "memory", "memory": "memory", "checkpoint": "checkpoint"}
    given = file.get("synchronizer.sync_method", default="nccl")
    return {"sync.method": _named("synchronizer.sync_method", names, given)}


def _length(file: ForeignFile, made: Native) -> Native:
    epochs = file.get("buffer.total_epochs")
    ratio = file.get("algorithm.optimizer.lr_warmup_steps_ratio")
    length: dict[str, object] = {}
    if epochs is not None and "learn.steps" not in made and "tasks.epochs" not in made:
        has_rows = any(made.get(f"env.{name}") for name in ("path", "games"))
        length["tasks.epochs" if has_rows else "learn.steps"] = epochs
    steps = {**made, **length}.get("learn.steps")
    if isinstance(ratio, int | float) and ratio > 0 and isinstance(steps, int):
        length["learn.optim.warmup_steps"] = round(ratio * steps)
    return length

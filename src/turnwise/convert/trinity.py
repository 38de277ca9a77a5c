"""Trinity-RFT's files: algorithm, buffer, explorer, synchronizer, trainer. A row for every key.

In: nothing. Out: the rows. What several keys say together is decided in `trinity_whole.py`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.config.component import WORKFLOWS
from turnwise.convert import table
from turnwise.convert.table import (
    ForeignFile,
    Given,
    Native,
    NoMeaning,
    Refusal,
    choose,
    idle,
    idle_if,
    into,
    made,
    number,
    read,
    refused,
    same,
    truth,
    whole,
)
from turnwise.convert.verl import AGGREGATIONS, KL_ESTIMATORS, SCHEDULES, every, pair_of_betas

_TASKSET = "buffer.explorer_input.taskset"
_EXPERIENCES = "buffer.trainer_input.experience_buffer"
_SYNC_STYLES = {
    "fixed": "fixed",
    "dynamic_by_explorer": "dynamic_by_explorer",
    "explorer_driven": "dynamic_by_explorer",
    "dynamic_by_trainer": "dynamic_by_trainer",
    "trainer_driven": "dynamic_by_trainer",
}
_PRIORITIES = {"linear_decay": "linear_decay", "decay_limit_randomization": "decay_limit_randomization"}
_MODES = {"both": "both", "explore": "explore", "train": "train", "bench": "eval"}


def reuse(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise Refusal("expected a number of seconds")
    return 1


def priority(given: Given) -> Native:
    if given.file.get(f"{_EXPERIENCES}.replay_buffer.enable") is not True:
        raise NoMeaning("replay_buffer.enable is not true: experiences are taken in their order")
    return {"buffer.priority.type": choose(_PRIORITIES, "a priority")(given.value)}


def newest_first(given: Given) -> Native:
    """Their queue prefers the newest where it is switched on; so does ours by default."""
    if not truth(given.value) or given.file.get(f"{_EXPERIENCES}.replay_buffer.priority_fn") is not None:
        return {}
    return {"buffer.priority.type": "linear_decay"}


def priority_argument(given: Given) -> Native:
    kind = given.file.get(f"{_EXPERIENCES}.replay_buffer.priority_fn", default="linear_decay")
    name = given.key.rpartition(".")[2]
    if kind == "linear_decay" and name != "decay":
        raise NoMeaning("linear_decay has a decay alone")
    return {f"buffer.priority.{name}": given.value}


def storage(value: Any) -> str:
    return choose({"queue": "memory", "sql": "sqlite"}, "a queue or a database")(value)


def first_adapter(given: Given) -> Native:
    if not isinstance(given.value, list) or len(given.value) != 1 or not isinstance(given.value[0], dict):
        raise Refusal("expected a list with one adapter")
    adapter = given.value[0]
    known = {
        "lora_rank": "rank",
        "rank": "rank",
        "lora_alpha": "alpha",
        "alpha": "alpha",
        "target_modules": "target_modules",
    }
    return {
        "model.lora.type": "lora",
        **{f"model.lora.{known[key]}": value for key, value in adapter.items() if key in known and value is not None},
    }


_GLOBAL = (
    idle("project", table.EXPERIMENT),
    same("name", "recipe"),
    idle("group", table.EXPERIMENT),
    into("mode", "run.mode", choose(_MODES, "a mode"), "explore and train meet in --run-dir"),
    same("checkpoint_root_dir", "run.root"),
    idle("continue_from_checkpoint", "a run goes on with: turnwise train --resume RUN"),
    idle("ray_namespace", table.ONE_MACHINE),
    refused("stages", "one stage is one run; give each its own file"),
)

_ALGORITHM = (
    read("algorithm.algorithm_type", "credit.type, learn.loss.type, learn.critic"),
    same("algorithm.repeat_times", "rollout.group_size"),
    same("algorithm.optimizer.lr", "learn.optim.lr"),
    made("algorithm.optimizer.betas", "learn.optim.beta1, beta2", pair_of_betas),
    same("algorithm.optimizer.weight_decay", "learn.optim.weight_decay"),
    same("algorithm.optimizer.clip_grad", "learn.optim.grad_clip"),
    idle_if("algorithm.optimizer.optimizer_type", ("adam", "adamw"), "AdamW", "AdamW is the optimizer"),
    into("algorithm.optimizer.lr_scheduler_type", "learn.optim.schedule", choose(SCHEDULES, "a schedule")),
    into("algorithm.optimizer.lr_warmup_steps", "learn.optim.warmup_steps", every),
    read("algorithm.optimizer.lr_warmup_steps_ratio", "learn.optim.warmup_steps", "a share of all steps"),
    same("algorithm.optimizer.min_lr_ratio", "learn.optim.final_lr_share"),
    read("algorithm.policy_loss_fn", "learn.loss.type"),
    read("algorithm.policy_loss_fn_args.clip_range", "learn.loss.clip_low, clip_high"),
    read("algorithm.policy_loss_fn_args.clip_range_low", "learn.loss.clip_low"),
    read("algorithm.policy_loss_fn_args.clip_range_high", "learn.loss.clip_high"),
    read("algorithm.policy_loss_fn_args.clip_ratio_c", "learn.loss.dual_clip", "of PPO's loss"),
    read("algorithm.policy_loss_fn_args.tau", "learn.loss.tau", "of OPMD"),
    into("algorithm.policy_loss_fn_args.loss_agg_mode", "learn.aggregation", choose(AGGREGATIONS, "a way to average")),
    into("algorithm.loss_agg_mode", "learn.aggregation", choose(AGGREGATIONS, "a way to average")),
    read("algorithm.advantage_fn", "credit.type"),
    read("algorithm.advantage_fn_args.gamma", "credit.gamma"),
    read("algorithm.advantage_fn_args.lam", "credit.lam"),
    read("algorithm.advantage_fn_args.omega", "credit.step_weight", "of GiGPO"),
    read("algorithm.advantage_fn_args.fnorm", "credit.scale_by_std", "of GiGPO: std or none"),
    read("algorithm.advantage_fn_args.enable_step_norm", "credit.step_norm", "of multi_step_grpo"),
    read("algorithm.advantage_fn_args.std_cal_level", "credit.std_level", "of multi_step_grpo"),
    read("algorithm.advantage_fn_args.std_threshold", "credit.std_threshold", "of multi_step_grpo"),
    read("algorithm.advantage_fn_args.opmd_baseline", "credit.baseline", "of OPMD"),
    read("algorithm.advantage_fn_args.tau", "credit.tau", "of OPMD"),
    idle("algorithm.advantage_fn_args.epsilon", "1e-6"),
    read("algorithm.kl_loss_fn", "learn.kl"),
    read("algorithm.kl_loss_fn_args.kl_coef", "learn.kl.coef"),
    read("algorithm.kl_penalty_fn", "learn.kl"),
    read("algorithm.kl_penalty_fn_args.kl_coef", "learn.kl.coef"),
    idle("algorithm.entropy_loss_fn", "learn.entropy_coef"),
    same("algorithm.entropy_loss_fn_args.entropy_coef", "learn.entropy_coef"),
    idle("algorithm.sample_strategy", "batches are taken by buffer.priority"),
    idle("algorithm.sample_strategy_args.**", "batches are taken by buffer.priority"),
    idle("algorithm.bypass_old_logprobs", "log-probs of sampling are always recorded"),
    idle("algorithm.enable_router_replay", table.GPU_WORKERS),
    idle("algorithm.add_strategy.**", "groups are filtered by reward.filter"),
)

_MODEL = (
    same("model.model_path", "model.path"),
    idle("model.critic_model_path", "the critic starts from the actor's weights"),
    same("model.max_model_len", "context.max_tokens"),
    read("model.max_prompt_tokens", "context.max_tokens", "with max_response_tokens, where max_model_len is not given"),
    same("model.max_response_tokens", "context.max_response_tokens", "of one reply"),
    idle_if(
        "model.min_response_tokens",
        (0, 1),
        "replies end where the model ends them",
        "replies end where the model ends them; leave it out",
    ),
    idle("model.enable_prompt_truncation", "an episode that outgrows context.max_tokens is cut and says so"),
    read("model.temperature", "rollout.temperature", "a taskset's own wins"),
    idle_if("model.top_p", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if("model.top_k", (-1, 0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if("model.repetition_penalty", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle("model.logprobs", "log-probs of sampling are always recorded"),
    refused("model.custom_chat_template", "write it into the model's tokenizer folder"),
    refused("model.chat_template_path", "write it into the model's tokenizer folder"),
    idle("model.enable_thinking", table.TEMPLATES),
    made("model.lora_configs", "model.lora", first_adapter, "the first adapter"),
    refused("model.rope_scaling.**", "change the config.json in the model's folder"),
    refused("model.rope_theta", "change the config.json in the model's folder"),
    idle_if("model.tinker.enable", (False,), "models are trained here", "a remote trainer is not there; train here"),
    idle("model.tinker.**", "with tinker.enable"),
)

_TASKS = (
    same("buffer.batch_size", "rollout.groups"),
    same("buffer.train_batch_size", "buffer.train_batch_size", "a ceiling, in experiences"),
    read("buffer.total_epochs", "tasks.epochs, or learn.steps", "of rows; without rows each is one rollout"),
    same("buffer.total_steps", "learn.steps"),
    idle(f"{_TASKSET}.name", "one task set: env"),
    idle_if(
        f"{_TASKSET}.storage_type", ("file", "auto"), "a file of rows", "tasks are rows of a file: storage_type: file"
    ),
    read(f"{_TASKSET}.path", "env.games, env.path", "a file, or a folder with SPLIT.jsonl"),
    read(f"{_TASKSET}.split", "env.path", "which file of a folder"),
    idle(f"{_TASKSET}.subset_name", "a file is read as a whole"),
    same(f"{_TASKSET}.total_epochs", "tasks.epochs"),
    same(f"{_TASKSET}.total_steps", "learn.steps"),
    same(f"{_TASKSET}.repeat_times", "rollout.group_size"),
    idle(f"{_TASKSET}.enable_progress_bar", "progress is always shown"),
    read(f"{_TASKSET}.format.prompt_key", "env.prompt_field, env.question_field", "game_file: a game for each row"),
    read(f"{_TASKSET}.format.response_key", "env.answer_field"),
    same(f"{_TASKSET}.format.system_prompt", "context.system_prompt"),
    idle(f"{_TASKSET}.format.**", "rows are read by the environment; a workflow finds the whole row in raw_task"),
    read(f"{_TASKSET}.rollout_args.temperature", "rollout.temperature"),
    idle(f"{_TASKSET}.rollout_args.logprobs", "log-probs of sampling are always recorded"),
    idle_if(f"{_TASKSET}.rollout_args.top_p", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if(f"{_TASKSET}.rollout_args.top_k", (-1, 0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if(f"{_TASKSET}.rollout_args.repetition_penalty", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if(
        f"{_TASKSET}.rollout_args.n",
        (1,),
        "siblings are repeat_times",
        "siblings are asked for by algorithm.repeat_times",
    ),
    same(f"{_TASKSET}.rollout_args.max_tokens", "context.max_response_tokens"),
    read(f"{_TASKSET}.workflow_args.**", "rollout.max_turns, env, rollout.workflow_args", "by the workflow"),
    read(f"{_TASKSET}.default_workflow_type", "env.type, rollout.workflow"),
    read(f"{_TASKSET}.default_reward_fn_type", "env.type"),
    idle(f"{_TASKSET}.reward_fn_args.**", "environments give their own rewards"),
    into(
        f"{_TASKSET}.task_selector.selector_type",
        "tasks.selector",
        choose(
            {"sequential": "sequential", "random": "random", "shuffle": "random", "difficulty_based": "difficulty"},
            "a selector",
        ),
    ),
    into(
        f"{_TASKSET}.data_selector.selector_type",
        "tasks.selector",
        choose(
            {"sequential": "sequential", "random": "random", "shuffle": "random", "difficulty_based": "difficulty"},
            "a selector",
        ),
    ),
    idle(f"{_TASKSET}.task_selector.**", "tasks are shuffled by run.seed"),
    idle(f"{_TASKSET}.data_selector.**", "tasks are shuffled by run.seed"),
    refused("buffer.explorer_input.tasksets", "one task set: buffer.explorer_input.taskset; further environments: mix"),
    read("buffer.explorer_input.eval_tasksets", "env.eval_path", "the first one, where tasks are rows of one file"),
    read("buffer.explorer_input.default_workflow_type", "env.type, rollout.workflow"),
    idle("buffer.explorer_input.default_eval_workflow_type", "evaluation plays as training does"),
    read("buffer.explorer_input.default_reward_fn_type", "env.type"),
    idle("buffer.pad_token_id", table.TEMPLATES),
    idle("buffer.cache_dir", "files are read where they lie"),
)

_BUFFER = (
    idle(f"{_EXPERIENCES}.name", "one buffer"),
    into(f"{_EXPERIENCES}.storage_type", "buffer.type", storage, "queue: memory; sql: sqlite"),
    idle(f"{_EXPERIENCES}.path", "experience.db in the run directory"),
    same(f"{_EXPERIENCES}.capacity", "buffer.capacity", "in experiences"),
    same(f"{_EXPERIENCES}.max_read_timeout", "sync.timeout_s"),
    idle(f"{_EXPERIENCES}.max_retry_times", "a busy database is waited for"),
    idle(f"{_EXPERIENCES}.max_retry_interval", "a busy database is waited for"),
    idle(f"{_EXPERIENCES}.format.**", "experiences hold token ids, not columns of text"),
    made(f"{_EXPERIENCES}.replay_buffer.enable", "buffer.priority.type", newest_first),
    made(f"{_EXPERIENCES}.replay_buffer.priority_fn", "buffer.priority.type", priority),
    made(f"{_EXPERIENCES}.replay_buffer.priority_fn_args.*", "buffer.priority", priority_argument),
    into(
        f"{_EXPERIENCES}.replay_buffer.reuse_cooldown_time",
        "buffer.reuse_cooldown",
        reuse,
        "seconds there, updates here: 1",
    ),
    refused("buffer.trainer_input.auxiliary_buffers.**", "one buffer; demonstrations are mixed in by learn.ptx"),
)

_EXPLORER = (
    idle("explorer.name", "one explorer"),
    read("explorer.runner_per_model", "rollout.max_concurrent", "times engine_num"),
    idle("explorer.concurrent_mode", "episodes are played at the same time"),
    idle("explorer.max_repeat_times_per_runner", "siblings are played at the same time"),
    same("explorer.max_timeout", "rollout.episode_timeout_s"),
    same("explorer.max_retry_times", "rollout.max_retries"),
    idle("explorer.env_vars.**", "environment variables of the shell"),
    into("explorer.eval_interval", "eval.every", every),
    idle("explorer.eval_on_startup", table.ALWAYS_EVALUATED),
    idle("explorer.bench_on_latest_checkpoint", "turnwise eval RUN evaluates the newest one"),
    idle("explorer.over_rollout.**", "no rollout waits for more than rollout.episode_timeout_s"),
    idle("explorer.dynamic_timeout.**", "no rollout waits for more than rollout.episode_timeout_s"),
    idle("explorer.runner_state_report_interval", "progress is always shown"),
    idle("explorer.runner_num", "episodes are played at the same time"),
    idle("explorer.max_inflight_batches", "sync.max_staleness bounds what is ahead"),
    idle("explorer.runner_prepare_concurrency", "rollout.max_concurrent"),
    idle("explorer.proxy_port", "turnwise serve --port N"),
    idle("explorer.listen_address", "turnwise serve listens on this machine alone"),
    idle("explorer.service_status_check_interval", "turnwise serve"),
    idle("explorer.min_running_model_num", "turnwise serve"),
    idle("explorer.db_url", "experience.db in the run directory"),
    idle("explorer.api_port", "turnwise serve --port N"),
    read("explorer.rollout_model.engine_num", "rollout.max_concurrent", "with runner_per_model"),
    idle("explorer.rollout_model.enable_history", "every call is recorded, always"),
    into(
        "explorer.rollout_model.dtype",
        "model.dtype",
        choose({"bfloat16": "bfloat16", "float32": "float32", "auto": "float32"}, "a data type"),
    ),
    idle("explorer.rollout_model.seed", "everything random comes from run.seed"),
    idle_if(
        "explorer.rollout_model.ignore_eos",
        (False,),
        "replies end where the model ends them",
        "replies end where the model ends them; leave it out",
    ),
    idle("explorer.rollout_model.engine_type", "engine.type names the engine: local"),
    idle("explorer.rollout_model.**", table.ENGINE_OPTION),
    refused("explorer.auxiliary_models", "a judge is a reward model or a function: reward.judge"),
)

_TRAINER = (
    idle("trainer.name", "one trainer"),
    idle("trainer.trainer_type", "learn.type names the learner: ppo"),
    idle("trainer.trainer_strategy", table.STRATEGY),
    into("trainer.save_interval", "report.checkpoint_every", every),
    idle("trainer.save_hf_checkpoint", "every checkpoint holds a Hugging Face folder"),
    idle("trainer.save_strategy", "checkpoints are written one after another"),
    idle("trainer.max_checkpoints_to_keep", "checkpoints stay"),
    same("trainer.total_steps", "learn.steps"),
    same("trainer.grad_clip", "learn.optim.grad_clip"),
    idle("trainer.use_dynamic_bsz", table.TOKEN_BATCHES),
    same("trainer.max_token_len_per_gpu", "learn.micro_batch_tokens"),
    idle("trainer.ulysses_sequence_parallel_size", table.GPU_WORKERS),
    idle("trainer.fix_actor_microbatch_loss_scale", "micro-batches never change the result"),
    idle("trainer.enable_preview", "trajectories/ in the run directory"),
    read("trainer.trainer_config.critic.optim.lr", "learn.critic.lr", "of algorithms with a critic"),
    read("trainer.trainer_config.critic.cliprange_value", "learn.critic.clip", "of algorithms with a critic"),
    read("trainer.trainer_config.trainer.critic_warmup", "learn.critic.warmup_steps", "of algorithms with a critic"),
    idle("trainer.trainer_config.**", "verl's workers and their memory; the learner runs in one process"),
    idle("trainer.trainer_config_path", "verl's workers and their memory; the learner runs in one process"),
    idle("trainer.actor_grad_clip", "trainer.grad_clip"),
)

_REST = (
    into("synchronizer.sync_style", "sync.style", choose(_SYNC_STYLES, "a style")),
    read("synchronizer.sync_method", "sync.method", "nccl, memory: inside the process; checkpoint: as files"),
    same("synchronizer.sync_interval", "sync.interval"),
    same("synchronizer.sync_offset", "sync.offset"),
    same("synchronizer.sync_timeout", "sync.timeout_s"),
    idle("synchronizer.wait_for_checkpoint", "nothing there reads it"),
    idle("cluster.**", table.ONE_MACHINE),
    idle("monitor.monitor_type", table.REPORTS),
    idle("monitor.**", table.REPORTS),
    refused("data_processor.task_pipeline.**", "prepare tasks before: a file of rows"),
    idle("data_processor.experience_pipeline.save_input", "buffer.type=sqlite keeps every experience"),
    idle("data_processor.experience_pipeline.input_save_path", "experience.db in the run directory"),
    refused(
        "data_processor.experience_pipeline.operators",
        "groups are chosen by reward.filter, rewards are changed by reward.shaping",
    ),
    idle("service.data_juicer.**", "tasks are rows of a file"),
    idle("log.**", "the console says what happens"),
)

ROWS = (*_GLOBAL, *_ALGORITHM, *_MODEL, *_TASKS, *_BUFFER, *_EXPLORER, *_TRAINER, *_REST)

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

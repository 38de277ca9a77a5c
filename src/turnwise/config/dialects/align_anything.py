"""align-anything's files and flags: train_cfgs, model_cfgs, data_cfgs and their like. A row for every key."""

from __future__ import annotations

from typing import Any

from turnwise.config.dialects import reasons
from turnwise.config.dialects.table import (
    Given,
    Native,
    NoMeaning,
    Row,
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
)
from turnwise.config.dialects.verl import SCHEDULES, pair_of_betas


def half_precision(value: Any) -> str:
    return "bfloat16" if truth(value) else "float32"


def clip_sides(given: Given) -> Native:
    return {"learn.loss.clip_low": given.value, "learn.loss.clip_high": given.value}


def normalised(value: Any) -> str:
    return "mean_std" if truth(value) else "identity"


def evaluated(given: Given) -> Native:
    strategy = given.file.get("train_cfgs.eval_strategy", default="steps")
    if strategy != "steps":
        raise NoMeaning(f"eval_strategy is '{strategy}': the run is evaluated before and after")
    return {"eval.every": given.value}


def pretraining_loss(given: Given) -> Native:
    path = given.file.get("data_cfgs.ptx_data_files", "data_cfgs.ptx_datasets")
    if path is None or number(given.value) == 0:
        raise NoMeaning("no data_cfgs.ptx_datasets are given")
    return {"learn.ptx.type": "file", "learn.ptx.path": path, "learn.ptx.coef": given.value}


def _dataset(split: str) -> tuple[Row, ...]:
    start = f"data_cfgs.{split}"
    return (
        idle(f"{start}_template", "prompts are messages: env.prompt_field and the model's own template"),
        idle(f"{start}_split", "a file is read as a whole"),
        idle(f"{start}_name", "a file is read as a whole"),
        idle(f"{start}_subset", "a file is read as a whole"),
        idle(f"{start}_optional_args", "a file is read as a whole"),
    )


_TRAIN = (
    read("train_cfgs.multi_turn", "env, rollout.max_turns", "false or not given: prompts and a reward model"),
    read("train_cfgs.use_reward_model", "reward.judge"),
    read("train_cfgs.use_reward_critic", "learn.critic"),
    read("train_cfgs.bi_level_gae", "credit.type", "bi_level_gae"),
    read("train_cfgs.high_level_gamma", "credit.high_level_gamma", "with bi-level GAE"),
    read("train_cfgs.max_turn", "rollout.max_turns"),
    read("train_cfgs.gamma", "credit.gamma"),
    read("train_cfgs.gae_lambda", "credit.lam"),
    read("train_cfgs.advantage_estimator", "credit.type"),
    read("train_cfgs.epochs", "tasks.epochs, or learn.steps", "of a finite set of tasks; else each is one rollout"),
    same("train_cfgs.total_training_steps", "learn.steps"),
    same("train_cfgs.seed", "run.seed"),
    read("train_cfgs.per_device_prompt_batch_size", "rollout.groups", "where es_manager does not say it"),
    idle("train_cfgs.per_device_train_batch_size", reasons.TOKEN_BATCHES),
    idle("train_cfgs.per_device_eval_batch_size", "held-out episodes are all played at once"),
    idle("train_cfgs.gradient_accumulation_steps", reasons.TOKEN_BATCHES),
    same("train_cfgs.actor_gradient_checkpointing", "model.gradient_checkpointing"),
    idle("train_cfgs.critic_gradient_checkpointing", "a critic follows model.gradient_checkpointing"),
    same("train_cfgs.gradient_checkpointing", "model.gradient_checkpointing"),
    same("train_cfgs.learning_rate", "learn.optim.lr"),
    same("train_cfgs.actor_lr", "learn.optim.lr"),
    into("train_cfgs.actor_lr_scheduler_type", "learn.optim.schedule", choose(SCHEDULES, "a schedule")),
    into("train_cfgs.lr_scheduler_type", "learn.optim.schedule", choose(SCHEDULES, "a schedule")),
    read("train_cfgs.actor_lr_warmup_ratio", "learn.optim.warmup_steps", "a share of all steps"),
    read("train_cfgs.lr_warmup_ratio", "learn.optim.warmup_steps", "a share of all steps"),
    same("train_cfgs.actor_weight_decay", "learn.optim.weight_decay"),
    same("train_cfgs.weight_decay", "learn.optim.weight_decay"),
    made("train_cfgs.adam_betas", "learn.optim.beta1, beta2", pair_of_betas),
    idle("train_cfgs.adam_epsilon", "Adam's own"),
    read("train_cfgs.critic_lr", "learn.critic.lr", "of a critic that is a model"),
    idle("train_cfgs.critic_lr_scheduler_type", "the critic follows the actor's schedule"),
    idle("train_cfgs.critic_lr_warmup_ratio", "the critic follows the actor's schedule"),
    idle("train_cfgs.critic_weight_decay", "the critic's optimizer has the actor's weight decay"),
    into("train_cfgs.bf16", "model.dtype", half_precision),
    idle_if("train_cfgs.fp16", (False,), "model.dtype is float32 or bfloat16", "float16 is not there; set bf16: true"),
    idle("train_cfgs.eval_strategy", "with eval_interval"),
    made("train_cfgs.eval_interval", "eval.every", evaluated),
    read("train_cfgs.kl_coeff", "learn.kl", "a price on the distance, paid out of the reward"),
    made("train_cfgs.clip_range_ratio", "learn.loss.clip_low, clip_high", clip_sides),
    idle("train_cfgs.clip_range_score", "scores are not cut; reward.normalisation scales them"),
    read("train_cfgs.clip_range_value", "learn.critic.clip"),
    made("train_cfgs.ptx_coeff", "learn.ptx", pretraining_loss, "with data_cfgs.ptx_datasets"),
    into("train_cfgs.normalize_reward", "reward.normalisation.method", normalised),
    same("train_cfgs.update_iters", "learn.epochs"),
    read("train_cfgs.n_samples_per_prompt", "rollout.group_size", "where es_manager does not say it"),
    read("train_cfgs.num_generations", "rollout.group_size", "where es_manager does not say it"),
    read("train_cfgs.beta", "learn.kl.coef", "of the loss"),
    refused("train_cfgs.freeze_mm_proj", "text only: there are no images, sounds or videos here"),
    refused("train_cfgs.freeze_vision_tower", "text only: there are no images, sounds or videos here"),
    refused("train_cfgs.freeze_language_model", "a language model is what is trained"),
    idle("train_cfgs.ds_cfgs", reasons.STRATEGY),
    idle("train_cfgs.save_checkpoint", "a checkpoint is always written at the end"),
    idle("train_cfgs.load_checkpoint", "a run goes on with: turnwise train --resume RUN"),
    idle("train_cfgs.max_grad_norm", "learn.optim.grad_clip"),
)

_DATA = (
    read("data_cfgs.train_datasets", "env.path", "where no environment is named"),
    read("data_cfgs.train_data_files", "env.path", "where no environment is named"),
    same("data_cfgs.train_size", "tasks.num_tasks"),
    read("data_cfgs.eval_datasets", "env.eval_path", "where no environment is named"),
    read("data_cfgs.eval_data_files", "env.eval_path", "where no environment is named"),
    same("data_cfgs.eval_size", "eval.episodes"),
    idle("data_cfgs.ptx_size", "a file is read as a whole"),
    read("data_cfgs.ptx_datasets", "learn.ptx.path"),
    read("data_cfgs.ptx_data_files", "learn.ptx.path"),
    idle("data_cfgs.load_multi_datasets", "one file for training, one for evaluation"),
    *_dataset("train"),
    *_dataset("eval"),
    *_dataset("ptx"),
)

_MODEL = (
    same("model_cfgs.actor_model_name_or_path", "model.path"),
    same("model_cfgs.model_name_or_path", "model.path"),
    read("model_cfgs.reward_model_name_or_path", "reward.judge.path"),
    idle("model_cfgs.reward_critic_model_name_or_path", "the critic starts from the actor's weights"),
    read("model_cfgs.use_reward_model", "reward.judge"),
    read("model_cfgs.use_reward_critic", "learn.critic"),
    refused(
        "model_cfgs.remote_reward_model_url",
        reasons.JUDGE_FUNCTION,
    ),
    idle("model_cfgs.trust_remote_code", reasons.REMOTE_CODE),
    same("model_cfgs.model_max_length", "context.max_tokens"),
    same("model_cfgs.max_new_tokens", "context.max_response_tokens"),
    same("model_cfgs.temperature", "rollout.temperature"),
    idle_if("model_cfgs.top_p", (1, 1.0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
    idle_if("model_cfgs.top_k", (-1, 0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
    idle_if("model_cfgs.repetition_penalty", (1, 1.0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
)

_REST = (
    idle("logger_cfgs.log_type", reasons.REPORTS),
    idle("logger_cfgs.log_project", reasons.EXPERIMENT),
    same("logger_cfgs.log_run_name", "recipe"),
    same("logger_cfgs.output_dir", "run.root", "a new folder is made in it"),
    idle("logger_cfgs.cache_dir", "models are cached where transformers caches them"),
    idle("logger_cfgs.save_total_limit", "checkpoints stay"),
    same("logger_cfgs.save_interval", "report.checkpoint_every"),
    read("lora_cfgs.use_lora", "model.lora"),
    read("lora_cfgs.r", "model.lora.rank"),
    read("lora_cfgs.lora_alpha", "model.lora.alpha"),
    read("lora_cfgs.target_modules", "model.lora.target_modules"),
    idle("lora_cfgs.lora_dropout", "adapters have no dropout"),
    idle("lora_cfgs.task_type", "a causal language model"),
    idle("lora_cfgs.inference_mode", "adapters are trained"),
    idle("lora_cfgs.save_full_model", "checkpoints hold the merged policy"),
    idle_if("bnb_cfgs.use_bnb", (False,), "weights are not quantised", "quantised weights are not there; leave it out"),
    idle("bnb_cfgs.**", "with use_bnb"),
    idle("special_tokens", reasons.TEMPLATES),
    idle("special_tokens.**", reasons.TEMPLATES),
    idle("vllm_cfgs.**", reasons.ENGINE_OPTION),
    read("env_cfgs.env_name", "env.type"),
    read("env_cfgs.env_type", "env.type"),
    same("env_cfgs.max_episode_length", "rollout.max_actions"),
    same("env_cfgs.max_turn", "rollout.max_turns"),
    read("env_cfgs.env_config.**", "env", "settings of the environment"),
)

ROWS = (*_TRAIN, *_DATA, *_MODEL, *_REST)

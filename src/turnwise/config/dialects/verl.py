"""verl's trainer files, which RAGEN and AgentTrainer build upon: a row for every key.

In: nothing. Out: the rows. What several keys say together is decided in `multi_turn_ppo.py`.
"""

from __future__ import annotations

from typing import Any

from turnwise.config.dialects import reasons
from turnwise.config.dialects.table import (
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

AGGREGATIONS = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "seq_mean_token_sum",
    "seq-mean-token-mean": "seq_mean_token_mean",
}
KL_ESTIMATORS = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine"}


def every(value: Any) -> int:
    """A frequency in steps; there -1 means never."""
    return max(0, whole(value, "a number of steps, or -1 for never"))


def pair_of_betas(given: Given) -> Native:
    if not isinstance(given.value, list) or len(given.value) != 2:
        raise Refusal("expected two numbers, such as [0.9, 0.999]")
    return {"learn.optim.beta1": number(given.value[0]), "learn.optim.beta2": number(given.value[1])}


def clip_both(given: Given) -> Native:
    """One range for both sides, unless they are given apart."""
    low, high = (given.file.get(f"{given.key}_{side}") for side in ("low", "high"))
    if low is not None and high is not None:
        raise NoMeaning("both sides are given apart")
    return {
        "learn.loss.clip_low": given.value if low is None else low,
        "learn.loss.clip_high": given.value if high is None else high,
    }


def greedy_or_not(given: Given) -> Native:
    return {} if truth(given.value) else {"eval.temperature": 0}


def greedy_wins(given: Given) -> Native:
    is_greedy = given.file.get(given.key.replace("temperature", "do_sample")) is False
    return {"eval.temperature": 0 if is_greedy else given.value}


def tokens_of_prompt_and_reply(given: Given) -> Native:
    """Our budget holds prompt and reply; theirs are apart."""
    if given.file.get("actor_rollout_ref.rollout.max_model_len") is not None:
        raise NoMeaning("actor_rollout_ref.rollout.max_model_len holds prompt and reply")
    reply = given.file.get("data.max_response_length", "actor_rollout_ref.rollout.response_length", default=512)
    return {"context.max_tokens": whole(given.value) + whole(reply)}


def refused_resume(given: Given) -> Native:
    if given.value in ("auto", "disable"):
        raise NoMeaning("a run goes on with: turnwise train --resume RUN")
    raise Refusal("go on with a run by: turnwise train --resume RUN")


def shuffled(value: Any) -> str:
    return "random" if truth(value) else "sequential"


_DATA = (
    read("data.train_files", "env.path", "where no environment is named"),
    read("data.val_files", "env.eval_path", "where no environment is named"),
    read("data.prompt_key", "env.prompt_field", "where no environment is named"),
    idle("data.reward_fn_key", "rewards come from the environment, or from reward.judge"),
    made("data.max_prompt_length", "context.max_tokens", tokens_of_prompt_and_reply, "prompt and reply together"),
    same("data.max_response_length", "context.max_response_tokens", "of one turn"),
    read("data.train_batch_size", "rollout.groups", "where es_manager does not say it"),
    idle("data.val_batch_size", "held-out episodes are all played at once"),
    idle("data.gen_batch_size", "a rollout is one batch: rollout.groups"),
    idle("data.return_raw_chat", "conversations are always kept"),
    idle("data.return_raw_input_ids", "token ids are always kept"),
    idle("data.return_full_prompt", "prompts are always kept"),
    into("data.shuffle", "tasks.selector", shuffled, "of a finite set of tasks"),
    idle("data.filter_overlong_prompts", "an episode that outgrows context.max_tokens is cut and says so"),
    idle("data.filter_overlong_prompts_workers", "as data.filter_overlong_prompts"),
    idle("data.truncation", "an episode that outgrows context.max_tokens is cut and says so"),
    idle_if("data.image_key", ("images",), "text only", "text only: there are no images here"),
    idle_if("data.video_key", ("videos",), "text only", "text only: there are no videos here"),
    idle("data.custom_cls.**", "data are read by the environment: env.type takes package.module:Class"),
    idle("data.tokenizer", "the model's own tokenizer"),
    idle("data.use_shm", reasons.GPU_WORKERS),
    idle("data.trust_remote_code", reasons.REMOTE_CODE),
    idle("data.seed", "everything random comes from run.seed"),
    idle("data.dataloader_num_workers", reasons.GPU_WORKERS),
)

_MODEL = (
    same("actor_rollout_ref.model.path", "model.path"),
    same("actor_rollout_ref.model.enable_gradient_checkpointing", "model.gradient_checkpointing"),
    read("actor_rollout_ref.model.lora_rank", "model.lora", "0: all weights are trained"),
    read("actor_rollout_ref.model.lora_alpha", "model.lora.alpha"),
    read("actor_rollout_ref.model.target_modules", "model.lora.target_modules"),
    idle("actor_rollout_ref.model.exclude_modules", "model.lora.target_modules names those that are adapted"),
    refused("actor_rollout_ref.model.external_lib", "import your classes as package.module:Class where they are used"),
    refused("actor_rollout_ref.model.override_config.**", "change the config.json in the model's folder"),
    refused("actor_rollout_ref.model.custom_chat_template", "write it into the model's tokenizer folder"),
    idle("actor_rollout_ref.model.use_remove_padding", "rows are packed by length; padding never changes the result"),
    idle("actor_rollout_ref.model.use_liger", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.model.use_fused_kernels", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.model.fused_kernel_options.**", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.model.enable_activation_offload", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.model.trust_remote_code", reasons.REMOTE_CODE),
    idle("actor_rollout_ref.model.use_shm", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.hybrid_engine", "engine and learner are in one process"),
    idle("actor_rollout_ref.nccl_timeout", reasons.ONE_MACHINE),
)

_ACTOR = (
    idle("actor_rollout_ref.actor.strategy", reasons.STRATEGY),
    read("actor_rollout_ref.actor.ppo_mini_batch_size", "learn.minibatches", "episodes of an update divided by it"),
    idle("actor_rollout_ref.actor.micro_batch_size_per_gpu", reasons.TOKEN_BATCHES),
    idle("actor_rollout_ref.actor.ppo_micro_batch_size", reasons.TOKEN_BATCHES),
    idle("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", reasons.TOKEN_BATCHES),
    idle("actor_rollout_ref.actor.use_dynamic_bsz", reasons.TOKEN_BATCHES),
    same("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "learn.micro_batch_tokens"),
    same("actor_rollout_ref.actor.grad_clip", "learn.optim.grad_clip"),
    made("actor_rollout_ref.actor.clip_ratio", "learn.loss.clip_low, clip_high", clip_both),
    same("actor_rollout_ref.actor.clip_ratio_low", "learn.loss.clip_low"),
    same("actor_rollout_ref.actor.clip_ratio_high", "learn.loss.clip_high"),
    same("actor_rollout_ref.actor.clip_ratio_c", "learn.loss.dual_clip"),
    into("actor_rollout_ref.actor.loss_agg_mode", "learn.aggregation", choose(AGGREGATIONS, "a way to average")),
    same("actor_rollout_ref.actor.entropy_coeff", "learn.entropy_coef"),
    idle("actor_rollout_ref.actor.use_ref", "a reference is loaded where learn.kl needs one"),
    read("actor_rollout_ref.actor.use_kl_loss", "learn.kl"),
    read("actor_rollout_ref.actor.kl_loss_coef", "learn.kl.coef"),
    read("actor_rollout_ref.actor.kl_loss_type", "learn.kl.estimator"),
    same("actor_rollout_ref.actor.ppo_epochs", "learn.epochs"),
    idle("actor_rollout_ref.actor.shuffle", "mini-batches are drawn anew in every epoch"),
    idle("actor_rollout_ref.actor.data_loader_seed", "everything random comes from run.seed"),
    idle("actor_rollout_ref.actor.use_torch_compile", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.actor.ulysses_sequence_parallel_size", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.actor.entropy_from_logits_with_chunking", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.actor.entropy_checkpointing", reasons.GPU_WORKERS),
    idle_if(
        "actor_rollout_ref.actor.grpo_advantage_length_weight",
        (False,),
        "advantages are not weighted by length",
        "advantages cannot be weighted by length; choose learn.aggregation=seq_mean_token_mean",
    ),
    idle("actor_rollout_ref.actor.checkpoint.**", "a checkpoint holds everything that a resumed run needs"),
    idle("actor_rollout_ref.actor.fsdp_config.**", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.actor.megatron.**", reasons.GPU_WORKERS),
    idle("actor_rollout_ref.actor.profiler.**", reasons.GPU_WORKERS),
    same("actor_rollout_ref.actor.optim.lr", "learn.optim.lr"),
    made("actor_rollout_ref.actor.optim.betas", "learn.optim.beta1, beta2", pair_of_betas),
    same("actor_rollout_ref.actor.optim.weight_decay", "learn.optim.weight_decay"),
    into("actor_rollout_ref.actor.optim.lr_warmup_steps", "learn.optim.warmup_steps", every),
    same("actor_rollout_ref.actor.optim.min_lr_ratio", "learn.optim.final_lr_share"),
    into("actor_rollout_ref.actor.optim.warmup_style", "learn.optim.schedule", choose(SCHEDULES, "a schedule")),
    into(
        "actor_rollout_ref.actor.optim.lr_scheduler_type",
        "learn.optim.schedule",
        choose(SCHEDULES, "a schedule"),
    ),
    idle_if("actor_rollout_ref.actor.optim.num_cycles", (0.5,), "half a cosine", "a cosine falls once: 0.5 cycles"),
    read("actor_rollout_ref.actor.optim.lr_warmup_steps_ratio", "learn.optim.warmup_steps", "a share of all steps"),
    idle("actor_rollout_ref.actor.optim.total_training_steps", "learn.steps is the length of the schedule"),
    idle("actor_rollout_ref.actor.optim.offload", reasons.GPU_WORKERS),
)

_REFERENCE = (
    idle("actor_rollout_ref.ref.**", "the reference shares the learner's settings"),
    same("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", "learn.micro_batch_tokens"),
)

_ROLLOUT = (
    idle("actor_rollout_ref.rollout.name", "engine.type names the engine: local"),
    idle("actor_rollout_ref.rollout.mode", "turns are played asynchronously, always"),
    read("actor_rollout_ref.rollout.n", "rollout.group_size", "where es_manager does not say it"),
    same("actor_rollout_ref.rollout.temperature", "rollout.temperature"),
    idle_if("actor_rollout_ref.rollout.top_k", (-1, 0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
    idle_if("actor_rollout_ref.rollout.top_p", (1, 1.0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
    idle("actor_rollout_ref.rollout.use_fire_sampling", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.prompt_length", "context.max_tokens holds prompt and reply"),
    same("actor_rollout_ref.rollout.response_length", "context.max_response_tokens", "of one turn"),
    same("actor_rollout_ref.rollout.max_model_len", "context.max_tokens"),
    same("actor_rollout_ref.rollout.max_num_seqs", "engine.max_rows"),
    into(
        "actor_rollout_ref.rollout.dtype", "model.dtype", choose({"bfloat16": "bfloat16", "float32": "float32"}, "it")
    ),
    idle_if(
        "actor_rollout_ref.rollout.ignore_eos",
        (False,),
        "replies end where the model ends them",
        "replies end where the model ends them; leave it out",
    ),
    idle_if(
        "actor_rollout_ref.rollout.do_sample",
        (True,),
        "exploring samples",
        "exploring samples; a greedy policy explores nothing",
    ),
    idle("actor_rollout_ref.rollout.tensor_model_parallel_size", reasons.ONE_MACHINE),
    idle("actor_rollout_ref.rollout.tp_size_check", reasons.ONE_MACHINE),
    idle("actor_rollout_ref.rollout.gpu_memory_utilization", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.max_num_batched_tokens", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.enforce_eager", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.cudagraph_capture_sizes", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.free_cache_engine", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.load_format", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.layered_summon", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.layer_name_map.**", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.enable_chunked_prefill", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.disable_log_stats", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.disable_logging", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.engine_kwargs.**", reasons.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.calculate_log_probs", "log-probs of sampling are always recorded"),
    idle("actor_rollout_ref.rollout.log_prob_micro_batch_size", reasons.TOKEN_BATCHES),
    idle("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", reasons.TOKEN_BATCHES),
    idle("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", reasons.TOKEN_BATCHES),
    idle("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", reasons.TOKEN_BATCHES),
    made("actor_rollout_ref.rollout.val_kwargs.temperature", "eval.temperature", greedy_wins),
    made("actor_rollout_ref.rollout.val_kwargs.do_sample", "eval.temperature", greedy_or_not, "false: greedy"),
    idle_if("actor_rollout_ref.rollout.val_kwargs.top_k", (-1, 0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
    idle_if("actor_rollout_ref.rollout.val_kwargs.top_p", (1, 1.0), reasons.WHOLE_DISTRIBUTION, reasons.SAMPLER_ONLY),
    idle_if(
        "actor_rollout_ref.rollout.val_kwargs.n",
        (1,),
        "each held-out task is played once",
        "each held-out task is played once; raise eval.episodes",
    ),
    read("actor_rollout_ref.rollout.multi_turn.enable", "rollout.max_turns"),
    same("actor_rollout_ref.rollout.multi_turn.max_turns", "rollout.max_turns"),
    same("actor_rollout_ref.rollout.multi_turn.max_assistant_turns", "rollout.max_turns"),
    refused(
        "actor_rollout_ref.rollout.multi_turn.tool_config_path",
        "name tools in Python: rollout.workflow=tool_calling (docs/write_a_workflow.md)",
    ),
    idle("actor_rollout_ref.rollout.multi_turn.format", reasons.TEMPLATES),
    idle("actor_rollout_ref.rollout.multi_turn.**", reasons.TEMPLATES),
    idle("actor_rollout_ref.rollout.agent.**", "rollout.workflow names who plays"),
    idle("actor_rollout_ref.rollout.trace.**", reasons.REPORTS),
    idle("actor_rollout_ref.rollout.update_weights_bucket_megabytes", reasons.ONE_MACHINE),
)

_CRITIC = (
    read("critic.optim.lr", "learn.critic.lr", "of a critic that is a model"),
    idle("critic.optim.betas", "the critic's optimizer has the actor's betas"),
    idle("critic.optim.weight_decay", "the critic's optimizer has the actor's weight decay"),
    idle("critic.optim.**", "the critic follows the actor's schedule"),
    idle("critic.model.path", "the critic starts from the actor's weights"),
    idle("critic.model.lora_rank", "the critic is adapted as the actor is"),
    idle("critic.model.lora_alpha", "the critic is adapted as the actor is"),
    idle("critic.model.target_modules", "the critic is adapted as the actor is"),
    idle("critic.model.**", "the critic is opened as the actor is"),
    read("critic.cliprange_value", "learn.critic.clip"),
    idle("critic.strategy", reasons.STRATEGY),
    idle("critic.ppo_mini_batch_size", "actor and critic learn from the same mini-batches"),
    idle("critic.ppo_micro_batch_size", reasons.TOKEN_BATCHES),
    idle("critic.ppo_micro_batch_size_per_gpu", reasons.TOKEN_BATCHES),
    idle("critic.forward_micro_batch_size", reasons.TOKEN_BATCHES),
    idle("critic.forward_micro_batch_size_per_gpu", reasons.TOKEN_BATCHES),
    idle("critic.use_dynamic_bsz", reasons.TOKEN_BATCHES),
    idle("critic.ppo_max_token_len_per_gpu", reasons.TOKEN_BATCHES),
    idle("critic.forward_max_token_len_per_gpu", reasons.TOKEN_BATCHES),
    idle("critic.ulysses_sequence_parallel_size", reasons.GPU_WORKERS),
    idle("critic.ppo_epochs", "actor and critic make the same passes: learn.epochs"),
    idle("critic.shuffle", "mini-batches are drawn anew in every epoch"),
    idle("critic.grad_clip", "actor and critic share learn.optim.grad_clip"),
    idle("critic.loss_agg_mode", "values are averaged over tokens"),
    idle("critic.rollout_n", "as actor_rollout_ref.rollout.n"),
    idle("critic.checkpoint.**", "a checkpoint holds everything that a resumed run needs"),
    idle("critic.profiler.**", reasons.GPU_WORKERS),
)

_REWARD = (
    read("reward_model.enable", "reward.judge"),
    read("reward_model.model.path", "reward.judge.path"),
    read("reward_model.max_length", "reward.judge.max_tokens"),
    idle("reward_model.micro_batch_size", "memory against speed: reward.judge.batch_rows"),
    idle("reward_model.micro_batch_size_per_gpu", "memory against speed: reward.judge.batch_rows"),
    idle("reward_model.reward_manager", "rewards come from the environment, or from reward.judge"),
    idle("reward_model.launch_reward_fn_async", "rewards are scored while others still play"),
    idle("reward_model.**", "the reward model is opened with its own tokenizer"),
    refused(
        "custom_reward_function.path",
        reasons.JUDGE_FUNCTION,
    ),
    refused("custom_reward_function.name", "as custom_reward_function.path"),
    idle("custom_reward_function.reward_kwargs.**", "as custom_reward_function.path"),
)

_ALGORITHM = (
    read("algorithm.adv_estimator", "credit.type"),
    read("algorithm.gamma", "credit.gamma"),
    read("algorithm.lam", "credit.lam"),
    read("algorithm.norm_adv_by_std_in_grpo", "credit.type", "false: dr_grpo"),
    read("algorithm.use_kl_in_reward", "learn.kl"),
    read("algorithm.kl_penalty", "learn.kl.estimator"),
    read("algorithm.kl_ctrl.type", "learn.kl.target", "adaptive: the price follows the distance"),
    read("algorithm.kl_ctrl.kl_coef", "learn.kl.coef"),
    read("algorithm.kl_ctrl.target_kl", "learn.kl.target"),
    read("algorithm.kl_ctrl.horizon", "learn.kl.horizon"),
    idle_if(
        "algorithm.use_pf_ppo",
        (False,),
        "samples are not weighted by preference",
        "preference feedback is not there; choose a filter: reward.filter",
    ),
    idle("algorithm.pf_ppo.**", "as algorithm.use_pf_ppo"),
)

_TRAINER = (
    read("trainer.total_epochs", "tasks.epochs, or learn.steps", "of a finite set of tasks; else each is one rollout"),
    same("trainer.total_training_steps", "learn.steps"),
    read("trainer.project_name", "recipe"),
    read("trainer.experiment_name", "recipe"),
    idle("trainer.logger", reasons.REPORTS),
    idle("trainer.log_val_generations", reasons.REPORTS),
    idle("trainer.rollout_data_dir", "trajectories/ in the run directory"),
    idle("trainer.validation_data_dir", "trajectories/ in the run directory"),
    idle("trainer.nnodes", reasons.ONE_MACHINE),
    idle("trainer.n_gpus_per_node", reasons.ONE_MACHINE),
    idle("trainer.device", reasons.ONE_MACHINE),
    into("trainer.save_freq", "report.checkpoint_every", every, "-1: only at the end"),
    into("trainer.test_freq", "eval.every", every, "-1: only before and after"),
    made("trainer.resume_mode", "", refused_resume, "a run goes on with: turnwise train --resume RUN"),
    refused("trainer.resume_from_path", "go on with a run by: turnwise train --resume RUN"),
    idle("trainer.val_before_train", reasons.ALWAYS_EVALUATED),
    idle_if("trainer.val_only", (False,), "training is what `train` does", "evaluate by: turnwise eval TARGET"),
    read("trainer.critic_warmup", "learn.critic.warmup_steps"),
    same("trainer.default_local_dir", "run.root"),
    idle("trainer.default_hdfs_dir", "runs are written to run.root"),
    idle("trainer.del_local_ckpt_after_load", "checkpoints stay"),
    idle("trainer.max_actor_ckpt_to_keep", "checkpoints stay"),
    idle("trainer.max_critic_ckpt_to_keep", "checkpoints stay"),
    idle("trainer.balance_batch", reasons.GPU_WORKERS),
    idle("trainer.ray_wait_register_center_timeout", reasons.ONE_MACHINE),
    idle("trainer.npu_profile.**", reasons.GPU_WORKERS),
    idle("trainer.profile_steps", reasons.GPU_WORKERS),
    idle("ray_init.**", reasons.ONE_MACHINE),
    idle("ray_kwargs.**", reasons.ONE_MACHINE),
    idle("global_profiler.**", reasons.GPU_WORKERS),
    idle("hydra.**", "settings of Hydra itself"),
)

ROWS = (*_DATA, *_MODEL, *_ACTOR, *_REFERENCE, *_ROLLOUT, *_CRITIC, *_REWARD, *_ALGORITHM, *_TRAINER)

"""verl's trainer files, which RAGEN and AgentTrainer build upon: a row for every key.

In: nothing. Out: the rows. What several keys say together is decided in `multi_turn_ppo.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from turnwise.convert import table
from turnwise.convert.environments import World, find_worlds
from turnwise.convert.table import (
    ForeignFile,
    Given,
    Native,
    NoMeaning,
    Refusal,
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
    idle("data.use_shm", table.GPU_WORKERS),
    idle("data.trust_remote_code", table.REMOTE_CODE),
    idle("data.seed", "everything random comes from run.seed"),
    idle("data.dataloader_num_workers", table.GPU_WORKERS),
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
    idle("actor_rollout_ref.model.use_liger", table.GPU_WORKERS),
    idle("actor_rollout_ref.model.use_fused_kernels", table.GPU_WORKERS),
    idle("actor_rollout_ref.model.fused_kernel_options.**", table.GPU_WORKERS),
    idle("actor_rollout_ref.model.enable_activation_offload", table.GPU_WORKERS),
    idle("actor_rollout_ref.model.trust_remote_code", table.REMOTE_CODE),
    idle("actor_rollout_ref.model.use_shm", table.GPU_WORKERS),
    idle("actor_rollout_ref.hybrid_engine", "engine and learner are in one process"),
    idle("actor_rollout_ref.nccl_timeout", table.ONE_MACHINE),
)

_ACTOR = (
    idle("actor_rollout_ref.actor.strategy", table.STRATEGY),
    read("actor_rollout_ref.actor.ppo_mini_batch_size", "learn.minibatches", "episodes of an update divided by it"),
    idle("actor_rollout_ref.actor.micro_batch_size_per_gpu", table.TOKEN_BATCHES),
    idle("actor_rollout_ref.actor.ppo_micro_batch_size", table.TOKEN_BATCHES),
    idle("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", table.TOKEN_BATCHES),
    idle("actor_rollout_ref.actor.use_dynamic_bsz", table.TOKEN_BATCHES),
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
    idle("actor_rollout_ref.actor.use_torch_compile", table.GPU_WORKERS),
    idle("actor_rollout_ref.actor.ulysses_sequence_parallel_size", table.GPU_WORKERS),
    idle("actor_rollout_ref.actor.entropy_from_logits_with_chunking", table.GPU_WORKERS),
    idle("actor_rollout_ref.actor.entropy_checkpointing", table.GPU_WORKERS),
    idle_if(
        "actor_rollout_ref.actor.grpo_advantage_length_weight",
        (False,),
        "advantages are not weighted by length",
        "advantages cannot be weighted by length; choose learn.aggregation=seq_mean_token_mean",
    ),
    idle("actor_rollout_ref.actor.checkpoint.**", "a checkpoint holds everything that a resumed run needs"),
    idle("actor_rollout_ref.actor.fsdp_config.**", table.GPU_WORKERS),
    idle("actor_rollout_ref.actor.megatron.**", table.GPU_WORKERS),
    idle("actor_rollout_ref.actor.profiler.**", table.GPU_WORKERS),
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
    idle("actor_rollout_ref.actor.optim.offload", table.GPU_WORKERS),
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
    idle_if("actor_rollout_ref.rollout.top_k", (-1, 0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if("actor_rollout_ref.rollout.top_p", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle("actor_rollout_ref.rollout.use_fire_sampling", table.ENGINE_OPTION),
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
    idle("actor_rollout_ref.rollout.tensor_model_parallel_size", table.ONE_MACHINE),
    idle("actor_rollout_ref.rollout.tp_size_check", table.ONE_MACHINE),
    idle("actor_rollout_ref.rollout.gpu_memory_utilization", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.max_num_batched_tokens", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.enforce_eager", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.cudagraph_capture_sizes", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.free_cache_engine", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.load_format", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.layered_summon", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.layer_name_map.**", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.enable_chunked_prefill", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.disable_log_stats", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.disable_logging", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.engine_kwargs.**", table.ENGINE_OPTION),
    idle("actor_rollout_ref.rollout.calculate_log_probs", "log-probs of sampling are always recorded"),
    idle("actor_rollout_ref.rollout.log_prob_micro_batch_size", table.TOKEN_BATCHES),
    idle("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", table.TOKEN_BATCHES),
    idle("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", table.TOKEN_BATCHES),
    idle("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", table.TOKEN_BATCHES),
    made("actor_rollout_ref.rollout.val_kwargs.temperature", "eval.temperature", greedy_wins),
    made("actor_rollout_ref.rollout.val_kwargs.do_sample", "eval.temperature", greedy_or_not, "false: greedy"),
    idle_if("actor_rollout_ref.rollout.val_kwargs.top_k", (-1, 0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if("actor_rollout_ref.rollout.val_kwargs.top_p", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
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
        "name tools in Python: rollout.workflow=tool_calling (docs/custom_workflow.md)",
    ),
    idle("actor_rollout_ref.rollout.multi_turn.format", table.TEMPLATES),
    idle("actor_rollout_ref.rollout.multi_turn.**", table.TEMPLATES),
    idle("actor_rollout_ref.rollout.agent.**", "rollout.workflow names who plays"),
    idle("actor_rollout_ref.rollout.trace.**", table.REPORTS),
    idle("actor_rollout_ref.rollout.update_weights_bucket_megabytes", table.ONE_MACHINE),
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
    idle("critic.strategy", table.STRATEGY),
    idle("critic.ppo_mini_batch_size", "actor and critic learn from the same mini-batches"),
    idle("critic.ppo_micro_batch_size", table.TOKEN_BATCHES),
    idle("critic.ppo_micro_batch_size_per_gpu", table.TOKEN_BATCHES),
    idle("critic.forward_micro_batch_size", table.TOKEN_BATCHES),
    idle("critic.forward_micro_batch_size_per_gpu", table.TOKEN_BATCHES),
    idle("critic.use_dynamic_bsz", table.TOKEN_BATCHES),
    idle("critic.ppo_max_token_len_per_gpu", table.TOKEN_BATCHES),
    idle("critic.forward_max_token_len_per_gpu", table.TOKEN_BATCHES),
    idle("critic.ulysses_sequence_parallel_size", table.GPU_WORKERS),
    idle("critic.ppo_epochs", "actor and critic make the same passes: learn.epochs"),
    idle("critic.shuffle", "mini-batches are drawn anew in every epoch"),
    idle("critic.grad_clip", "actor and critic share learn.optim.grad_clip"),
    idle("critic.loss_agg_mode", "values are averaged over tokens"),
    idle("critic.rollout_n", "as actor_rollout_ref.rollout.n"),
    idle("critic.checkpoint.**", "a checkpoint holds everything that a resumed run needs"),
    idle("critic.profiler.**", table.GPU_WORKERS),
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
        table.JUDGE_FUNCTION,
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
    idle("trainer.logger", table.REPORTS),
    idle("trainer.log_val_generations", table.REPORTS),
    idle("trainer.rollout_data_dir", "trajectories/ in the run directory"),
    idle("trainer.validation_data_dir", "trajectories/ in the run directory"),
    idle("trainer.nnodes", table.ONE_MACHINE),
    idle("trainer.n_gpus_per_node", table.ONE_MACHINE),
    idle("trainer.device", table.ONE_MACHINE),
    into("trainer.save_freq", "report.checkpoint_every", every, "-1: only at the end"),
    into("trainer.test_freq", "eval.every", every, "-1: only before and after"),
    made("trainer.resume_mode", "", refused_resume, "a run goes on with: turnwise train --resume RUN"),
    refused("trainer.resume_from_path", "go on with a run by: turnwise train --resume RUN"),
    idle("trainer.val_before_train", table.ALWAYS_EVALUATED),
    idle_if("trainer.val_only", (False,), "training is what `train` does", "evaluate by: turnwise eval TARGET"),
    read("trainer.critic_warmup", "learn.critic.warmup_steps"),
    same("trainer.default_local_dir", "run.root"),
    idle("trainer.default_hdfs_dir", "runs are written to run.root"),
    idle("trainer.del_local_ckpt_after_load", "checkpoints stay"),
    idle("trainer.max_actor_ckpt_to_keep", "checkpoints stay"),
    idle("trainer.max_critic_ckpt_to_keep", "checkpoints stay"),
    idle("trainer.balance_batch", table.GPU_WORKERS),
    idle("trainer.ray_wait_register_center_timeout", table.ONE_MACHINE),
    idle("trainer.npu_profile.**", table.GPU_WORKERS),
    idle("trainer.profile_steps", table.GPU_WORKERS),
    idle("ray_init.**", table.ONE_MACHINE),
    idle("ray_kwargs.**", table.ONE_MACHINE),
    idle("global_profiler.**", table.GPU_WORKERS),
    idle("hydra.**", "settings of Hydra itself"),
)

VERL_ROWS = (*_DATA, *_MODEL, *_ACTOR, *_REFERENCE, *_ROLLOUT, *_CRITIC, *_REWARD, *_ALGORITHM, *_TRAINER)


def window(given: Given) -> Native:
    turns = whole(given.value, "a number of turns, or -1 for all of them")
    return {"context.window": "sliding", "context.window_turns": turns} if turns > 0 else {"context.window": "full"}


def window_mode(given: Given) -> Native:
    modes = {"full": "full", "limited_multi_turn": "sliding", "single_turn": "single_turn"}
    return {"context.window": choose(modes, "a context window")(given.value)}


def thinking(given: Given) -> Native:
    return {"context.answer.type": "think_answer" if truth(given.value) else "answer"}


def filtering(given: Given) -> Native:
    """The share of groups that is learnt from; all of them is no filter."""
    share = given.value
    if isinstance(share, int | float) and share >= 1:
        return {"reward.filter.type": "none"}
    return {"reward.filter.type": "top_k", "reward.filter.share": share, "reward.filter.max_rounds": 1}


def filter_score(given: Given) -> Native:
    share = given.file.get(
        "actor_rollout_ref.rollout.rollout_filter_ratio", "actor_rollout_ref.rollout.rollout_filter_value", default=1
    )
    score = choose({"std": "reward_std", "mean": "reward_mean", "length": "length"}, "a score")(given.value)
    if not isinstance(share, int | float) or share >= 1:
        raise NoMeaning("nothing is filtered: rollout_filter_ratio is 1 or not given")
    return {"reward.filter.by": score}


def held_out(given: Given) -> Native:
    groups = whole(given.file.get("es_manager.val.env_groups", default=256))
    return {"eval.episodes": groups * whole(given.file.get("es_manager.val.group_size", default=1))}


def composed(given: Given) -> Native:
    raise NoMeaning("files that lie beside it were read first; what is not there takes the defaults here")


def one_seed(given: Given) -> Native:
    """Seeds may be a number, or one for training and one for evaluation."""
    return {"rollout.first_seed": whole(given.value, "a number, or {train: …, val: …}")}


RAGEN_ROWS = (
    made("defaults", "", composed, "files of Hydra that lie beside it are read first"),
    idle("system.CUDA_VISIBLE_DEVICES", "an environment variable of the shell"),
    idle("system.**", table.ONE_MACHINE),
    made("seed", "rollout.first_seed", one_seed),
    same("seed.train", "rollout.first_seed"),
    same("seed.val", "eval.first_seed"),
    idle("micro_batch_size_per_gpu", table.TOKEN_BATCHES),
    read("ppo_mini_batch_size", "learn.minibatches", "episodes of an update divided by it"),
    same("model_path", "model.path"),
    idle_if(
        "enable_response_mask",
        (True,),
        "exactly the sampled tokens are trained, always",
        "exactly the sampled tokens are trained, always; leave it out",
    ),
    idle_if(
        "grpo_advantage_length_weight",
        (False,),
        "advantages are not weighted by length",
        "advantages cannot be weighted by length; choose learn.aggregation=seq_mean_token_mean",
    ),
    read("lora.rank", "model.lora", "0: all weights are trained"),
    read("lora.alpha", "model.lora.alpha"),
    read("lora.target_modules", "model.lora.target_modules"),
    read("algorithm.bi_level_gae", "credit.type", "bi_level_gae"),
    read("algorithm.high_level_gamma", "credit.high_level_gamma", "with bi-level GAE"),
    made("actor_rollout_ref.rollout.rollout_filter_ratio", "reward.filter", filtering, "the share that is learnt from"),
    made("actor_rollout_ref.rollout.rollout_filter_value", "reward.filter", filtering, "the share that is learnt from"),
    made("actor_rollout_ref.rollout.rollout_filter_type", "reward.filter.by", filter_score),
    idle("actor_rollout_ref.rollout.rollout_filter_strategy", "groups with the largest scores are learnt from"),
    idle("trainer.validation_steps", "all held-out episodes are played at once: eval.episodes"),
    same("trainer.generations_to_log_to_wandb.train", "report.trajectories_per_step"),
    idle("trainer.generations_to_log_to_wandb.val", "held-out episodes are counted, not written"),
    read("agent_proxy.max_turn", "rollout.max_turns"),
    read("agent_proxy.use_environment", "env", "false: prompts and a reward model"),
    made("agent_proxy.max_context_window", "context.window, window_turns", window, "-1: all turns"),
    made("agent_proxy.context_window_mode", "context.window", window_mode),
    same("agent_proxy.action_sep", "context.answer.separator"),
    same("agent_proxy.max_actions_per_turn", "context.answer.max_actions_per_turn"),
    idle("agent_proxy.use_turn_scores", "rewards always stand at the turn that earned them"),
    idle("agent_proxy.batch_adjust_mode", table.GPU_WORKERS),
    made("agent_proxy.enable_think", "context.answer.type", thinking),
    same("agent_proxy.reward_normalization.grouping", "reward.normalisation.grouping"),
    same("agent_proxy.reward_normalization.method", "reward.normalisation.method"),
    same("es_manager.format_penalty", "rollout.invalid_penalty"),
    read("es_manager.train.env_groups", "rollout.groups", "of all environments together"),
    same("es_manager.train.group_size", "rollout.group_size"),
    read("es_manager.train.env_configs.tags", "env, mix.TAG"),
    read("es_manager.train.env_configs.n_groups", "rollout.groups, mix.TAG.groups"),
    made("es_manager.val.env_groups", "eval.episodes", held_out, "groups times their size"),
    made("es_manager.val.group_size", "eval.episodes", held_out, "groups times their size"),
    idle("es_manager.val.env_configs.**", "the training environments are evaluated, on tasks held out of training"),
    idle("ctx_manager.generation.**", "repeats actor_rollout_ref.rollout"),
    read("custom_envs.*.env_type", "env.type"),
    read("custom_envs.*.max_actions_per_traj", "rollout.max_actions, mix.TAG.max_actions"),
    idle("custom_envs.*.env_instruction", "environments explain themselves: context.instructions"),
    idle("custom_envs.*.max_tokens", "a hint in the prompt there; the limit is context.max_response_tokens"),
    idle("custom_envs.*.parallel_friendly", "environments are played at the same time, always"),
    idle("custom_envs.*.max_workers", "environments are played at the same time, always"),
    read("custom_envs.*.env_config.**", "env, mix.TAG.env", "settings of the environment"),
    refused("model_config.**", "an endpoint cannot be trained; train a model folder: model_path"),
    refused("model_info.**", "an endpoint cannot be trained; train a model folder: model_path"),
)


ESTIMATORS = {
    "gae": "gae",
    "grpo": "grpo",
    "group_norm": "grpo",
    "rloo": "rloo",
    "reinforce": "reinforce",
    "reinforce_baseline": "rloo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "remax": "remax",
    "bi_level_gae": "bi_level_gae",
    "gigpo": "gigpo",
}
_DISCOUNTS = {
    "gae": ("gamma", "lam"),
    "bi_level_gae": ("gamma", "lam", "high_level_gamma"),
    "reinforce": ("gamma",),
    "reinforce_pp": ("gamma",),
}
"""Which of these a rule has."""
_NEED_VALUES = ("gae", "bi_level_gae")
_MULTI_TURN_SECTIONS = ("es_manager", "agent_proxy", "custom_envs", "env_cfgs", "agent", "env_template")
_GROUPS = 8
_GROUP_SIZE = 16
"""How many of each there are where a file does not say."""


def finish(file: ForeignFile, single: Native) -> Native:
    """The settings that several keys decide together."""
    is_multi = _is_multi_turn(file)
    worlds = find_worlds(file, is_multi)
    if file.is_partial:
        return _changes(file, single, worlds)
    credit = _credit(file, is_multi)
    made: dict[str, object] = {
        **_turns(file, is_multi),
        **_sizes(file, single, worlds),
        **_judge(file, is_multi, worlds),
        **credit,
        **_critic(file, is_multi, str(credit.get("credit.type", ""))),
        **_distance(file),
        **_adapters(file),
        **_name(file),
    }
    made |= _length(file, worlds)
    made |= _warm_up(file, {**single, **made})
    return {**made, **_played(worlds, {**single, **made})}


def _changes(file: ForeignFile, single: Native, worlds: list[World]) -> Native:
    """What single keys change in settings that are there: only what was asked for."""
    multi = _ask(file, truth, "train_cfgs.multi_turn")
    made: dict[str, object] = {**_distance(file), **_adapters(file), **_name(file)}
    if file.has("train_cfgs.max_turn", "agent_proxy.max_turn", "agent.max_turn") or multi is False:
        made |= _turns(file, multi is not False)
    if file.has("es_manager.train", "env_cfgs.env_name", "env_cfgs.env_type", "env_template"):
        made |= _played(worlds, single)
    made |= _credit(file, is_multi=True)
    for name in ("use_reward_model", "use_reward_critic"):
        wanted = _ask(file, truth, f"train_cfgs.{name}", f"model_cfgs.{name}")
        made |= {} if wanted is None else {name: wanted}
    return {**made, **_length(file, worlds)}


def _ask(file: ForeignFile, what: Callable[[Any], Any], *keys: str, default: Any = None) -> Any:
    """The value of the first key that is there, checked; a refusal names the key."""
    for key in keys:
        if file.get(key) is not None:
            try:
                return what(file.get(key))
            except Refusal as refusal:
                raise Refusal(f"{key}: {refusal}") from refusal
    return default


def _is_multi_turn(file: ForeignFile) -> bool:
    asked = _ask(file, truth, "train_cfgs.multi_turn", "actor_rollout_ref.rollout.multi_turn.enable")
    if asked is None:
        asked = file.has(*_MULTI_TURN_SECTIONS)
    return asked


def _turns(file: ForeignFile, is_multi: bool) -> Native:
    keys = ("train_cfgs.max_turn", "agent_proxy.max_turn", "agent.max_turn")
    given = {key: file.get(key) for key in keys if file.get(key) is not None}
    if len(set(map(repr, given.values()))) > 1:
        several = " and ".join(f"{key} = {value!r}" for key, value in given.items())
        raise Refusal(f"{next(iter(given))}: {several} are given; give one of them")
    turns = next(iter(given.values()), None)
    if not is_multi:
        return {"rollout.max_turns": 1}
    return {} if turns is None else {"rollout.max_turns": turns}


def _sizes(file: ForeignFile, single: Native, worlds: list[World]) -> Native:
    size = single.get("rollout.group_size")
    if size is None:
        keys = ("actor_rollout_ref.rollout.n", "train_cfgs.n_samples_per_prompt", "train_cfgs.num_generations")
        size = _ask(file, whole, *keys)
    if size is None and file.has("agent", "env_template"):
        # An agent is one episode of its own; siblings are asked for by name.
        size = 1
    made: dict[str, object] = {} if size is None else {"rollout.group_size": size}
    mini = _ask(file, whole, "actor_rollout_ref.actor.ppo_mini_batch_size", "ppo_mini_batch_size")
    if mini is not None and mini > 0:
        episodes = sum(world.groups or _GROUPS for world in worlds) * (size if isinstance(size, int) else _GROUP_SIZE)
        made["learn.minibatches"] = max(1, round(episodes / mini))
    return made


def _judge(file: ForeignFile, is_multi: bool, worlds: list[World]) -> Native:
    keys = ("train_cfgs.use_reward_model", "model_cfgs.use_reward_model", "reward_model.enable")
    is_wanted = _ask(file, truth, *keys)
    path = file.get("model_cfgs.reward_model_name_or_path", "reward_model.model.path")
    if is_wanted is None:
        is_wanted = not is_multi and worlds[0].settings["type"] == "prompts"
    if not is_wanted:
        return {}
    if path is None and not worlds[0].settings.get("path"):
        # The built-in prompts have a built-in reward model.
        path = "tiny"
    judge: dict[str, object] = {"reward.judge.type": "model", "reward.judge.path": path}
    if (longest := file.get("reward_model.max_length")) is not None:
        judge["reward.judge.max_tokens"] = longest
    return judge


def _credit(file: ForeignFile, is_multi: bool) -> Native:
    is_bi_level = _ask(file, truth, "train_cfgs.bi_level_gae", "algorithm.bi_level_gae", default=False)
    keys = ("algorithm.adv_estimator", "train_cfgs.advantage_estimator")
    rule = _ask(file, choose(ESTIMATORS, "an estimator"), *keys)
    if is_bi_level and rule not in (None, "gae", "bi_level_gae"):
        raise Refusal(f"{keys[0]}: bi-level GAE is asked for as well; set it to gae, or leave it out")
    if is_bi_level:
        rule = "bi_level_gae"
    if rule is None:
        # Single-turn PPO is with GAE; with several turns the rule follows from whether there is a critic.
        rule = None if is_multi else "grpo" if file.has("train_cfgs.num_generations") else "gae"
    if rule == "grpo" and _ask(file, truth, "algorithm.norm_adv_by_std_in_grpo") is False:
        rule = "dr_grpo"
    if rule is None:
        return {}
    discounts = {
        "gamma": file.get("train_cfgs.gamma", "algorithm.gamma"),
        "lam": file.get("train_cfgs.gae_lambda", "algorithm.lam"),
        "high_level_gamma": file.get("train_cfgs.high_level_gamma", "algorithm.high_level_gamma"),
    }
    has = {f"credit.{name}": discounts[name] for name in _DISCOUNTS.get(rule, ()) if discounts[name] is not None}
    return {"credit.type": rule, **has}


def _critic(file: ForeignFile, is_multi: bool, rule: str) -> Native:
    """A critic that is a model, or a value head on the actor where none is loaded and the rule needs values."""
    is_wanted = _ask(file, truth, "train_cfgs.use_reward_critic", "model_cfgs.use_reward_critic")
    is_foreign_default = file.has("algorithm", "critic", "actor_rollout_ref") or not is_multi
    if is_wanted is None:
        is_wanted = rule in _NEED_VALUES and is_foreign_default
    kind = "model" if is_wanted else "value_head" if rule in _NEED_VALUES else "none"
    critic: dict[str, object] = {"learn.critic.type": kind}
    if kind == "none":
        return critic
    clip = file.get("train_cfgs.clip_range_value", "critic.cliprange_value")
    lr = file.get("train_cfgs.critic_lr", "critic.optim.lr")
    warm = file.get("trainer.critic_warmup")
    critic |= {} if clip is None else {"learn.critic.clip": clip}
    critic |= {} if warm is None else {"learn.critic.warmup_steps": warm}
    return critic | ({"learn.critic.lr": lr} if kind == "model" and lr is not None else {})


def _distance(file: ForeignFile) -> Native:
    """One price on the distance to the starting policy: inside the loss, or paid out of the reward."""
    in_loss = _ask(file, number, "actor_rollout_ref.actor.kl_loss_coef", default=0.001)
    if _ask(file, truth, "actor_rollout_ref.actor.use_kl_loss", default=False) and in_loss > 0:
        kind = _ask(file, choose(KL_ESTIMATORS, "an estimator"), "actor_rollout_ref.actor.kl_loss_type", default="k3")
        return {"learn.kl.type": "loss", "learn.kl.coef": in_loss, "learn.kl.estimator": kind}
    if (beta := _ask(file, number, "train_cfgs.beta", default=0)) > 0:
        return {"learn.kl.type": "loss", "learn.kl.coef": beta}
    price = _ask(file, number, "train_cfgs.kl_coeff", default=0)
    if _ask(file, truth, "algorithm.use_kl_in_reward", default=False):
        price = _ask(file, number, "algorithm.kl_ctrl.kl_coef", default=0.001)
    if price <= 0:
        return {}
    kind = _ask(file, choose(KL_ESTIMATORS, "an estimator"), "algorithm.kl_penalty", default="k1")
    made: dict[str, object] = {"learn.kl.type": "reward", "learn.kl.coef": price, "learn.kl.estimator": kind}
    if file.get("algorithm.kl_ctrl.type") == "adaptive":
        made["learn.kl.target"] = file.get("algorithm.kl_ctrl.target_kl", default=0.1)
        made["learn.kl.horizon"] = file.get("algorithm.kl_ctrl.horizon", default=10_000)
    return made


def _adapters(file: ForeignFile) -> Native:
    rank = _ask(file, whole, "actor_rollout_ref.model.lora_rank", "lora.rank", default=0)
    if _ask(file, truth, "lora_cfgs.use_lora", default=False):
        rank = _ask(file, whole, "lora_cfgs.r", default=16)
    if rank <= 0:
        return {}
    alpha = file.get("actor_rollout_ref.model.lora_alpha", "lora.alpha", "lora_cfgs.lora_alpha")
    keys = ("actor_rollout_ref.model.target_modules", "lora.target_modules", "lora_cfgs.target_modules")
    made: dict[str, object] = {"model.lora.type": "lora", "model.lora.rank": rank}
    made |= {} if alpha is None else {"model.lora.alpha": alpha}
    return made if (modules := file.get(*keys)) is None else {**made, "model.lora.target_modules": modules}


def _name(file: ForeignFile) -> Native:
    parts = [file.get("trainer.project_name"), file.get("trainer.experiment_name")]
    named = "-".join(str(part) for part in parts if part)
    return {"recipe": named.replace("/", "-")} if named else {}


def _length(file: ForeignFile, worlds: list[World]) -> Native:
    """Epochs of a finite set of tasks; a world without end has none, so that each is one rollout."""
    epochs = file.get("trainer.total_epochs", "train_cfgs.epochs")
    if epochs is None or file.get("trainer.total_training_steps", "train_cfgs.total_training_steps") is not None:
        return {}
    return {"tasks.epochs": epochs} if worlds[0].has_rows else {"learn.steps": epochs}


def _warm_up(file: ForeignFile, made: Native) -> Native:
    keys = (
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "train_cfgs.actor_lr_warmup_ratio",
        "train_cfgs.lr_warmup_ratio",
    )
    ratio = _ask(file, number, *keys, default=0)
    steps = made.get("learn.steps")
    if ratio <= 0 or "learn.optim.warmup_steps" in made or not isinstance(steps, int):
        return {}
    return {"learn.optim.warmup_steps": math.ceil(ratio * steps)}


def _played(worlds: list[World], made: Native) -> Native:
    """The first world is `env`, the others are mixed in, talked to in the same way."""
    first, *others = worlds
    played: dict[str, object] = {f"env.{name}": value for name, value in first.settings.items()}
    played |= {} if first.groups is None else {"rollout.groups": first.groups}
    if first.max_actions is not None:
        played["rollout.max_actions"] = first.max_actions
    if first.settings["type"] == "prompts":
        played["context.answer.type"] = "plain"
    context = {path: value for path, value in {**made, **played}.items() if path.startswith("context.")}
    for world in others:
        start = f"mix.{world.tag}"
        played |= {f"{start}.env.{name}": value for name, value in world.settings.items()}
        played |= {f"{start}.{path}": value for path, value in context.items()}
        played[f"{start}.groups"] = world.groups or 1
        played[f"{start}.max_turns"] = made.get("rollout.max_turns", 5)
        played[f"{start}.max_actions"] = world.max_actions
    return played


def agent_class(given: Given) -> Native:
    return {"rollout.workflow": "agent", "rollout.workflow_args.agent_cls": given.value}


AGENT_TRAINER_ROWS = (
    read("agent.max_turn", "rollout.max_turns"),
    read("agent.agent_length", "rollout.groups", "agents that play at the same time, each in its own environment"),
    made("agent.agent_cls", "rollout.workflow", agent_class, "agent, with workflow_args.agent_cls"),
    idle("agent.history_length", "an agent keeps its own history"),
    read("env_template", "env, mix.TAG", "an environment for each agent, by name or as a mapping"),
)


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
    idle("train_cfgs.per_device_train_batch_size", table.TOKEN_BATCHES),
    idle("train_cfgs.per_device_eval_batch_size", "held-out episodes are all played at once"),
    idle("train_cfgs.gradient_accumulation_steps", table.TOKEN_BATCHES),
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
    idle("train_cfgs.ds_cfgs", table.STRATEGY),
    idle("train_cfgs.save_checkpoint", "a checkpoint is always written at the end"),
    idle("train_cfgs.load_checkpoint", "a run goes on with: turnwise train --resume RUN"),
    idle("train_cfgs.max_grad_norm", "learn.optim.grad_clip"),
)

_ALIGN_DATA = (
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

_ALIGN_MODEL = (
    same("model_cfgs.actor_model_name_or_path", "model.path"),
    same("model_cfgs.model_name_or_path", "model.path"),
    read("model_cfgs.reward_model_name_or_path", "reward.judge.path"),
    idle("model_cfgs.reward_critic_model_name_or_path", "the critic starts from the actor's weights"),
    read("model_cfgs.use_reward_model", "reward.judge"),
    read("model_cfgs.use_reward_critic", "learn.critic"),
    refused(
        "model_cfgs.remote_reward_model_url",
        table.JUDGE_FUNCTION,
    ),
    idle("model_cfgs.trust_remote_code", table.REMOTE_CODE),
    same("model_cfgs.model_max_length", "context.max_tokens"),
    same("model_cfgs.max_new_tokens", "context.max_response_tokens"),
    same("model_cfgs.temperature", "rollout.temperature"),
    idle_if("model_cfgs.top_p", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if("model_cfgs.top_k", (-1, 0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
    idle_if("model_cfgs.repetition_penalty", (1, 1.0), table.WHOLE_DISTRIBUTION, table.SAMPLER_ONLY),
)

_REST = (
    idle("logger_cfgs.log_type", table.REPORTS),
    idle("logger_cfgs.log_project", table.EXPERIMENT),
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
    idle("special_tokens", table.TEMPLATES),
    idle("special_tokens.**", table.TEMPLATES),
    idle("vllm_cfgs.**", table.ENGINE_OPTION),
    read("env_cfgs.env_name", "env.type"),
    read("env_cfgs.env_type", "env.type"),
    same("env_cfgs.max_episode_length", "rollout.max_actions"),
    same("env_cfgs.max_turn", "rollout.max_turns"),
    read("env_cfgs.env_config.**", "env", "settings of the environment"),
)

ALIGN_ANYTHING_ROWS = (*_TRAIN, *_ALIGN_DATA, *_ALIGN_MODEL, *_REST)

"""RAGEN's files: environment groups, contexts, custom environments. A row for every key that verl does not have."""

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
    made,
    read,
    refused,
    same,
    truth,
    whole,
)


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


ROWS = (
    made("defaults", "", composed, "files of Hydra that lie beside it are read first"),
    idle("system.CUDA_VISIBLE_DEVICES", "an environment variable of the shell"),
    idle("system.**", reasons.ONE_MACHINE),
    made("seed", "rollout.first_seed", one_seed),
    same("seed.train", "rollout.first_seed"),
    same("seed.val", "eval.first_seed"),
    idle("micro_batch_size_per_gpu", reasons.TOKEN_BATCHES),
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
    idle("agent_proxy.batch_adjust_mode", reasons.GPU_WORKERS),
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


ENV_KEYS: dict[str, dict[str, str]] = {
    "sokoban": {"dim_x": "rows", "dim_y": "columns"},
    "webshop": {"data_path": "products"},
    "metamathqa": {"dataset_path": "path"},
    "countdown": {"train_path": "path"},
}
"""Keys of their environments that have another name here."""

IDLE_ENV_KEYS: dict[str, str] = {
    "max_steps": "the budget of actions is max_actions_per_traj",
    "search_depth": "rooms are made solvable: env.max_moves bounds their solutions",
    "grid_vocab": "the legend is made from env.symbols",
    "action_lookup": "an environment names its actions itself",
    "dataset": "products are made from word lists; a file of your own: env.products",
    "cache_dir": "nothing is downloaded",
    "split": "splits are train and eval, always",
    "map_seed": "layouts are drawn by the task's seed",
    "render_mode": "environments show text",
    "image_placeholder": "environments show text",
    "observation_format": "env.view chooses how the world is shown",
    "p": "env.hole_rate is the share of holes",
    "desc": "layouts are drawn by the task's seed",
}


SOKOBAN_SYMBOLS = ("wall", "floor", "target", "stored", "box", "player", "player_on_target")
"""In the order of the numbers of `grid_lookup`."""


def translate_env_key(env_type: str, key: str, value: Any) -> dict[str, Any]:
    """A key of `env_config` as a setting of our environment; may raise NoMeaning or Refusal."""
    first, _, rest = key.partition(".")
    if first == "render_mode" and value != "text":
        raise Refusal("text only: pictures cannot be played here")
    if first == "grid_lookup" and env_type == "sokoban":
        if rest.isdigit() and int(rest) < len(SOKOBAN_SYMBOLS):
            return {f"symbols.{SOKOBAN_SYMBOLS[int(rest)]}": value}
        raise Refusal(f"expected a number from 0 to {len(SOKOBAN_SYMBOLS) - 1} for each symbol")
    if first in IDLE_ENV_KEYS:
        raise NoMeaning(IDLE_ENV_KEYS[first])
    return {ENV_KEYS.get(env_type, {}).get(key, key): value}

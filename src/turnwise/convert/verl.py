"""Converters for files of verl, and of RAGEN, AgentTrainer and align-anything, which build upon each other.

Files mix the sections of these projects, so one function decides what several keys mean together.
"""

from __future__ import annotations

import math
from typing import Any

from turnwise.config.formats import Native
from turnwise.convert.environments import ImportedEnv, find_envs
from turnwise.convert.table import (
    IgnoredValue,
    KeyValue,
    SourceConfig,
    UnsupportedValue,
    as_bool,
    as_float,
    as_int,
    drop_none,
    one_of,
)

aggregation = one_of(
    {
        "token-mean": "token_mean",
        "seq-mean-token-sum": "seq_mean_token_sum",
        "seq-mean-token-mean": "seq_mean_token_mean",
    },
    "a way to average",
)
schedule = one_of({"constant": "constant", "linear": "linear", "cosine": "cosine"}, "a schedule")
KL_ESTIMATORS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
kl_estimator = one_of(KL_ESTIMATORS, "an estimator")
estimator = one_of(
    {
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
    },
    "an estimator",
)
_DISCOUNTS = {
    "gae": ("gamma", "lam"),
    "bi_level_gae": ("gamma", "lam", "high_level_gamma"),
    "reinforce": ("gamma",),
    "reinforce_pp": ("gamma",),
}
"""Settings that an estimator has."""
_NEED_VALUES = ("gae", "bi_level_gae")
_MULTI_TURN_SECTIONS = ("es_manager", "agent_proxy", "custom_envs", "env_cfgs", "agent", "env_template")
_GROUPS = 8
_GROUP_SIZE = 16
"""How many of each there are if a file does not say."""


def as_interval(value: Any) -> int:
    """A frequency in steps; there -1 means never."""
    return max(0, as_int(value, "a number of steps, or -1 for never"))


def selector(value: Any) -> str:
    return "random" if as_bool(value) else "sequential"


def bf16_dtype(value: Any) -> str:
    return "bfloat16" if as_bool(value) else "float32"


def normalization_method(value: Any) -> str:
    return "mean_std" if as_bool(value) else "identity"


def betas(given: KeyValue) -> Native:
    if not isinstance(given.value, list) or len(given.value) != 2:
        raise UnsupportedValue("expected two numbers, such as [0.9, 0.999]")
    return {"learn.optim.beta1": as_float(given.value[0]), "learn.optim.beta2": as_float(given.value[1])}


def clip_range(given: KeyValue) -> Native:
    """One range for both sides, unless `_low` and `_high` are given."""
    low, high = (given.source.get(f"{given.key}_{side}") for side in ("low", "high"))
    if low is not None and high is not None:
        raise IgnoredValue("both sides are given apart")
    return {
        "learn.loss.clip_low": given.value if low is None else low,
        "learn.loss.clip_high": given.value if high is None else high,
    }


def symmetric_clip_range(given: KeyValue) -> Native:
    return {"learn.loss.clip_low": given.value, "learn.loss.clip_high": given.value}


def do_sample(given: KeyValue) -> Native:
    return {} if as_bool(given.value) else {"eval.temperature": 0}


def eval_temperature(given: KeyValue) -> Native:
    is_greedy = given.source.get(given.key.replace("temperature", "do_sample")) is False
    return {"eval.temperature": 0 if is_greedy else given.value}


def prompt_and_response_tokens(given: KeyValue) -> Native:
    """Our budget holds prompt and reply; theirs are two."""
    if given.source.get("actor_rollout_ref.rollout.max_model_len") is not None:
        raise IgnoredValue("actor_rollout_ref.rollout.max_model_len holds prompt and reply")
    reply = given.source.get("data.max_response_length", "actor_rollout_ref.rollout.response_length", default=512)
    return {"context.max_tokens": as_int(given.value) + as_int(reply)}


def resume_mode(given: KeyValue) -> Native:
    if given.value in ("auto", "disable"):
        raise IgnoredValue("a run goes on with: turnwise train --resume RUN")
    raise UnsupportedValue("go on with a run by: turnwise train --resume RUN")


def context_window(given: KeyValue) -> Native:
    turns = as_int(given.value, "a number of turns, or -1 for all of them")
    return {"context.window": "sliding", "context.window_turns": turns} if turns > 0 else {"context.window": "full"}


def answer_type(value: Any) -> str:
    return "think_answer" if as_bool(value) else "answer"


def filter_share(given: KeyValue) -> Native:
    """The share of groups that is trained on; all of them is no filter."""
    share = given.value
    if isinstance(share, int | float) and share >= 1:
        return {"reward.filter.type": "none"}
    return {"reward.filter.type": "top_k", "reward.filter.share": share, "reward.filter.max_rounds": 1}


def filter_score(given: KeyValue) -> Native:
    start = "actor_rollout_ref.rollout.rollout_filter"
    share = given.source.get(f"{start}_ratio", f"{start}_value", default=1)
    score = one_of({"std": "reward_std", "mean": "reward_mean", "length": "length"}, "a score")(given.value)
    if not isinstance(share, int | float) or share >= 1:
        raise IgnoredValue("nothing is filtered: rollout_filter_ratio is 1 or not given")
    return {"reward.filter.by": score}


def eval_episodes(given: KeyValue) -> Native:
    groups = as_int(given.source.get("es_manager.val.env_groups", default=256))
    return {"eval.episodes": groups * as_int(given.source.get("es_manager.val.group_size", default=1))}


def hydra_defaults(given: KeyValue) -> Native:
    raise IgnoredValue("files that lie beside it were read first; what is not there takes the defaults here")


def first_seed(value: Any) -> int:
    """A seed is a number, or one for training and one for evaluation."""
    return as_int(value, "a number, or {train: …, val: …}")


def agent_class(given: KeyValue) -> Native:
    return {"rollout.workflow": "agent", "rollout.workflow_args.agent_cls": given.value}


def eval_interval(given: KeyValue) -> Native:
    strategy = given.source.get("train_cfgs.eval_strategy", default="steps")
    if strategy != "steps":
        raise IgnoredValue(f"eval_strategy is '{strategy}': the run is evaluated before and after")
    return {"eval.every": given.value}


def ptx_coef(given: KeyValue) -> Native:
    path = given.source.get("data_cfgs.ptx_data_files", "data_cfgs.ptx_datasets")
    if path is None or as_float(given.value) == 0:
        raise IgnoredValue("no data_cfgs.ptx_datasets are given")
    return {"learn.ptx.type": "file", "learn.ptx.path": path, "learn.ptx.coef": given.value}


def verl_family_finish(source: SourceConfig, single: Native) -> Native:
    """The settings that several keys decide together. `single` are those of the rows."""
    multi_turn = source.read(as_bool, "train_cfgs.multi_turn", "actor_rollout_ref.rollout.multi_turn.enable")
    is_multi = source.has(*_MULTI_TURN_SECTIONS) if multi_turn is None else multi_turn
    envs = find_envs(source, is_multi)
    if source.is_partial:
        return _convert_changes(source, single, envs)
    credit = _convert_credit(source, is_multi)
    made: dict[str, object] = {
        **_convert_turns(source, is_multi),
        **_convert_sizes(source, single, envs),
        **_convert_judge(source, is_multi, envs),
        **credit,
        **_convert_critic(source, is_multi, str(credit.get("credit.type", ""))),
        **_convert_kl(source),
        **_convert_lora(source),
        **_convert_name(source),
        **_convert_length(source, envs),
    }
    made |= _convert_warmup(source, {**single, **made})
    return {**made, **_convert_envs(envs, {**single, **made})}


def _convert_changes(source: SourceConfig, single: Native, envs: list[ImportedEnv]) -> Native:
    """What single keys change in settings that are there already: nothing but what they name."""
    multi = source.read(as_bool, "train_cfgs.multi_turn")
    made: dict[str, object] = {**_convert_kl(source), **_convert_lora(source), **_convert_name(source)}
    if source.has("train_cfgs.max_turn", "agent_proxy.max_turn", "agent.max_turn") or multi is False:
        made |= _convert_turns(source, multi is not False)
    if source.has("es_manager.train", "env_cfgs.env_name", "env_cfgs.env_type", "env_template"):
        made |= _convert_envs(envs, single)
    made |= _convert_credit(source, is_multi=True)
    for name in ("use_reward_model", "use_reward_critic"):
        made |= drop_none({name: source.read(as_bool, f"train_cfgs.{name}", f"model_cfgs.{name}")})
    return {**made, **_convert_length(source, envs)}


def _convert_turns(source: SourceConfig, is_multi: bool) -> Native:
    keys = ("train_cfgs.max_turn", "agent_proxy.max_turn", "agent.max_turn")
    given = {key: source.get(key) for key in keys if source.get(key) is not None}
    if len(set(map(repr, given.values()))) > 1:
        several = " and ".join(f"{key} = {value!r}" for key, value in given.items())
        raise UnsupportedValue(f"{next(iter(given))}: {several} are given; give one of them")
    return drop_none({"rollout.max_turns": next(iter(given.values()), None) if is_multi else 1})


def _convert_sizes(source: SourceConfig, single: Native, envs: list[ImportedEnv]) -> Native:
    size = single.get("rollout.group_size")
    if size is None:
        keys = ("actor_rollout_ref.rollout.n", "train_cfgs.n_samples_per_prompt", "train_cfgs.num_generations")
        size = source.read(as_int, *keys)
    if size is None and source.has("agent", "env_template"):
        # An agent is one episode; `n` asks for more of the same task.
        size = 1
    mini = source.read(as_int, "actor_rollout_ref.actor.ppo_mini_batch_size", "ppo_mini_batch_size")
    minibatches = None
    if mini is not None and mini > 0:
        episodes = sum(env.groups or _GROUPS for env in envs) * (size if isinstance(size, int) else _GROUP_SIZE)
        minibatches = max(1, round(episodes / mini))
    return drop_none({"rollout.group_size": size, "learn.minibatches": minibatches})


def _convert_judge(source: SourceConfig, is_multi: bool, envs: list[ImportedEnv]) -> Native:
    keys = ("train_cfgs.use_reward_model", "model_cfgs.use_reward_model", "reward_model.enable")
    is_wanted = source.read(as_bool, *keys, default=not is_multi and envs[0].settings["type"] == "prompts")
    if not is_wanted:
        return {}
    path = source.get("model_cfgs.reward_model_name_or_path", "reward_model.model.path")
    if path is None and not envs[0].settings.get("path"):
        # The built-in prompts have a built-in reward model.
        path = "tiny"
    longest = source.get("reward_model.max_length")
    return {
        "reward.judge.type": "model",
        "reward.judge.path": path,
        **drop_none({"reward.judge.max_tokens": longest}),
    }


def _convert_credit(source: SourceConfig, is_multi: bool) -> Native:
    is_bi_level = source.read(as_bool, "train_cfgs.bi_level_gae", "algorithm.bi_level_gae", default=False)
    keys = ("algorithm.adv_estimator", "train_cfgs.advantage_estimator")
    name = source.read(estimator, *keys)
    if is_bi_level and name not in (None, "gae", "bi_level_gae"):
        raise UnsupportedValue(f"{keys[0]}: bi-level GAE is asked for as well; set it to gae, or leave it out")
    if is_bi_level:
        name = "bi_level_gae"
    elif name is None and not is_multi:
        # With several turns the estimator follows from whether there is a critic.
        name = "grpo" if source.has("train_cfgs.num_generations") else "gae"
    if name == "grpo" and source.read(as_bool, "algorithm.norm_adv_by_std_in_grpo") is False:
        name = "dr_grpo"
    if name is None:
        return {}
    discounts = {
        "gamma": source.get("train_cfgs.gamma", "algorithm.gamma"),
        "lam": source.get("train_cfgs.gae_lambda", "algorithm.lam"),
        "high_level_gamma": source.get("train_cfgs.high_level_gamma", "algorithm.high_level_gamma"),
    }
    return {"credit.type": name, **drop_none({f"credit.{key}": discounts[key] for key in _DISCOUNTS.get(name, ())})}


def _convert_critic(source: SourceConfig, is_multi: bool, estimator_name: str) -> Native:
    """A critic that is a model, or a value head on the actor if none is loaded and the estimator needs values."""
    needs_values = estimator_name in _NEED_VALUES
    default = needs_values and (source.has("algorithm", "critic", "actor_rollout_ref") or not is_multi)
    is_wanted = source.read(as_bool, "train_cfgs.use_reward_critic", "model_cfgs.use_reward_critic", default=default)
    kind = "model" if is_wanted else "value_head" if needs_values else "none"
    if kind == "none":
        return {"learn.critic.type": kind}
    lr = source.get("train_cfgs.critic_lr", "critic.optim.lr")
    critic = {
        "learn.critic.type": kind,
        "learn.critic.clip": source.get("train_cfgs.clip_range_value", "critic.cliprange_value"),
        "learn.critic.warmup_steps": source.get("trainer.critic_warmup"),
        "learn.critic.lr": lr if kind == "model" else None,
    }
    return drop_none(critic)


def _convert_kl(source: SourceConfig) -> Native:
    """A KL term in the loss, or one paid out of the reward."""
    in_loss = source.read(as_float, "actor_rollout_ref.actor.kl_loss_coef", default=0.001)
    if source.read(as_bool, "actor_rollout_ref.actor.use_kl_loss", default=False) and in_loss > 0:
        kind = source.read(kl_estimator, "actor_rollout_ref.actor.kl_loss_type", default="k3")
        return {"learn.kl.type": "loss", "learn.kl.coef": in_loss, "learn.kl.estimator": kind}
    if (beta := source.read(as_float, "train_cfgs.beta", default=0)) > 0:
        return {"learn.kl.type": "loss", "learn.kl.coef": beta}
    coef = source.read(as_float, "train_cfgs.kl_coeff", default=0)
    if source.read(as_bool, "algorithm.use_kl_in_reward", default=False):
        coef = source.read(as_float, "algorithm.kl_ctrl.kl_coef", default=0.001)
    if coef <= 0:
        return {}
    kind = source.read(kl_estimator, "algorithm.kl_penalty", default="k1")
    made: dict[str, object] = {"learn.kl.type": "reward", "learn.kl.coef": coef, "learn.kl.estimator": kind}
    if source.get("algorithm.kl_ctrl.type") == "adaptive":
        made["learn.kl.target"] = source.get("algorithm.kl_ctrl.target_kl", default=0.1)
        made["learn.kl.horizon"] = source.get("algorithm.kl_ctrl.horizon", default=10_000)
    return made


def _convert_lora(source: SourceConfig) -> Native:
    rank = source.read(as_int, "actor_rollout_ref.model.lora_rank", "lora.rank", default=0)
    if source.read(as_bool, "lora_cfgs.use_lora", default=False):
        rank = source.read(as_int, "lora_cfgs.r", default=16)
    if rank <= 0:
        return {}
    model = "actor_rollout_ref.model"
    lora = {
        "model.lora.type": "lora",
        "model.lora.rank": rank,
        "model.lora.alpha": source.get(f"{model}.lora_alpha", "lora.alpha", "lora_cfgs.lora_alpha"),
        "model.lora.target_modules": source.get(
            f"{model}.target_modules", "lora.target_modules", "lora_cfgs.target_modules"
        ),
    }
    return drop_none(lora)


def _convert_name(source: SourceConfig) -> Native:
    parts = [source.get("trainer.project_name"), source.get("trainer.experiment_name")]
    named = "-".join(str(part) for part in parts if part)
    return {"recipe": named.replace("/", "-")} if named else {}


def _convert_length(source: SourceConfig, envs: list[ImportedEnv]) -> Native:
    """Epochs of a finite set of tasks; where tasks never end, an epoch is one rollout."""
    epochs = source.get("trainer.total_epochs", "train_cfgs.epochs")
    if epochs is None or source.get("trainer.total_training_steps", "train_cfgs.total_training_steps") is not None:
        return {}
    return {"tasks.epochs": epochs} if envs[0].has_rows else {"learn.steps": epochs}


def _convert_warmup(source: SourceConfig, made: Native) -> Native:
    keys = (
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
        "train_cfgs.actor_lr_warmup_ratio",
        "train_cfgs.lr_warmup_ratio",
    )
    ratio = source.read(as_float, *keys, default=0)
    steps = made.get("learn.steps")
    if ratio <= 0 or "learn.optim.warmup_steps" in made or not isinstance(steps, int):
        return {}
    return {"learn.optim.warmup_steps": math.ceil(ratio * steps)}


def _convert_envs(envs: list[ImportedEnv], made: Native) -> Native:
    """The first environment is `env`, the others are mixed in with the same prompts."""
    main, *others = envs
    played: dict[str, object] = {f"env.{name}": value for name, value in main.settings.items()}
    played |= drop_none({"rollout.groups": main.groups, "rollout.max_actions": main.max_actions})
    if main.settings["type"] == "prompts":
        played["context.answer.type"] = "plain"
    context = {path: value for path, value in {**made, **played}.items() if path.startswith("context.")}
    for env in others:
        start = f"mix.{env.tag}"
        played |= {f"{start}.env.{name}": value for name, value in env.settings.items()}
        played |= {f"{start}.{path}": value for path, value in context.items()}
        played[f"{start}.groups"] = env.groups or 1
        played[f"{start}.max_turns"] = made.get("rollout.max_turns", 5)
        played[f"{start}.max_actions"] = env.max_actions
    return played

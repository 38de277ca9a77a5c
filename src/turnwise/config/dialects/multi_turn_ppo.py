"""What a file of RAGEN, align-anything, verl or AgentTrainer says as a whole.

In: the file, and what its single keys became. Out: the settings on which several keys decide together: environments,
who gives rewards, credit and critic, the price of distance, sizes. What is not there is decided as those projects do:
with several turns rewards come from the environment and neither a reward model nor a critic is loaded; with one turn
prompts are answered, scored by a reward model, with a critic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from turnwise.config.dialects.environments import World, find_worlds
from turnwise.config.dialects.table import ForeignFile, Native, Refusal, choose, number, truth, whole
from turnwise.config.dialects.verl import KL_ESTIMATORS

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

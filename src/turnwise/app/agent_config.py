"""The config that an AgentTrainer is given becomes settings: our own layout, or that of agents with `env_template`.

In: a recipe's name, a file, a mapping or settings. Out: settings of the workflow `agent`. A mapping with `agent`,
`env_template`, `trainer` or `algorithm` stands on the recipe `agent_class`; what else is in it are settings as they are
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.app.ppo_trainer import plain_config
from turnwise.config.load import load_settings
from turnwise.config.registry import CREDITS, ENVS
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError, did_you_mean
from turnwise.rollout.worlds import main_world

_FOREIGN = {
    "agent": ("max_turn", "agent_length"),
    "trainer": ("total_epochs",),
    "algorithm": ("adv_estimator",),
}
_NAMES = ("type", "env_type", "env_name", "name")
"""Under which of its keys an entry of `env_template` says which environment it is."""


def load_agent_settings(
    config: str | Path | Mapping[str, object] | TurnwiseSettings, overrides: Mapping[str, object]
) -> TurnwiseSettings:
    """Settings of agents; `overrides` count last."""
    given = plain_config(config)
    if not isinstance(given, Mapping) or not given.keys() & {*_FOREIGN, "env_template"}:
        return load_settings(given, overrides)
    own = {key: value for key, value in given.items() if key not in _FOREIGN and key != "env_template"}
    base = load_settings("agent_class", own | dict(overrides))
    agent, trainer, algorithm = (_section(given, key) for key in _FOREIGN)
    words = {**_credit(algorithm, base), **_worlds(given.get("env_template"), agent, base)}
    settings = load_settings("agent_class", own | words | dict(overrides))
    if "total_epochs" not in trainer:
        return settings
    steps = _count(trainer, "trainer.total_epochs") * _steps_per_epoch(settings)
    return load_settings("agent_class", own | words | {"learn.steps": steps} | dict(overrides))


def _section(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = given.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name}: {section!r} given; expected a section with {', '.join(_FOREIGN[name])}.")
    for key in section:
        if key not in _FOREIGN[name]:
            raise ConfigError(f"{name}.{key}: there is no such setting here. {did_you_mean(key, _FOREIGN[name])}")
    return section


def _count(section: Mapping[str, Any], path: str) -> int:
    given = section[path.rpartition(".")[2]]
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ConfigError(f"{path}: {given!r} given; expected a whole number above 0.")
    return given


def _credit(algorithm: Mapping[str, Any], base: TurnwiseSettings) -> dict[str, object]:
    if "adv_estimator" not in algorithm:
        return {}
    name = algorithm["adv_estimator"]
    if name not in CREDITS:
        raise ConfigError(f"algorithm.adv_estimator: '{name}' given. {did_you_mean(str(name), CREDITS)}")
    needs_critic = getattr(CREDITS.get_target(name), "needs_values", False) and base.learn.critic.type == "none"
    return {"credit.type": name, **({"learn.critic.type": "value_head"} if needs_critic else {})}


def _steps_per_epoch(settings: TurnwiseSettings) -> int:
    """How many rollouts see every task once; one, where tasks never end: each agent has played."""
    num_tasks = settings.tasks.num_tasks or main_world(settings).count_tasks("train") or 1
    return -(-num_tasks // settings.rollout.groups)


# --- one environment for each agent -----------------------------------------------------------------------------------


def _worlds(template: object, agent: Mapping[str, Any], base: TurnwiseSettings) -> dict[str, object]:
    """Agents with equal environments are groups of one world; each further environment is a world of `mix`."""
    rollout = base.rollout
    max_turns = _count(agent, "agent.max_turn") if "max_turn" in agent else rollout.max_turns
    words: dict[str, object] = {"rollout.max_turns": max_turns}
    num_agents = _count(agent, "agent.agent_length") if "agent_length" in agent else None
    if template is None:
        return words | ({} if num_agents is None else {"rollout.groups": num_agents})
    envs = [_env(entry, number, base) for number, entry in enumerate(_entries(template, num_agents))]
    worlds = [number for number, env in enumerate(envs) if env not in envs[:number]]
    words |= {"env": envs[0], "rollout.groups": envs.count(envs[0])}
    mixed = {
        f"agent_{number}": {
            "groups": envs.count(envs[number]),
            "max_turns": max_turns,
            "max_actions": rollout.max_actions,
            "env": envs[number],
            "context": base.context.model_dump(mode="json"),
        }
        for number in worlds[1:]
    }
    return words | ({"mix": mixed} if mixed else {})


def _entries(template: object, num_agents: int | None) -> list[object]:
    if not isinstance(template, Sequence) or isinstance(template, str) or not template:
        raise ConfigError(f"env_template: {template!r} given; expected a list with an environment for each agent.")
    if num_agents is None or num_agents == len(template):
        return list(template)
    if len(template) > 1:
        raise ConfigError(
            f"env_template: {len(template)} environments given; expected agent.agent_length = {num_agents} of them, or "
            "one for all."
        )
    return list(template) * num_agents


def _env(entry: object, number: int, base: TurnwiseSettings) -> dict[str, Any]:
    """The settings of an agent's environment; one of the recipe's kind begins with the recipe's settings."""
    where = f"env_template[{number}]"
    if not isinstance(entry, str | Mapping):
        raise ConfigError(f"{where}: {entry!r} given; expected a name such as 'FrozenLake', or a section with 'type'.")
    given = {"type": entry} if isinstance(entry, str) else dict(entry)
    key = next((name for name in _NAMES if name in given), None)
    if key is None:
        raise ConfigError(f"{where}: it has no 'type'; it has {', '.join(map(repr, given)) or 'nothing'}.")
    name, params = str(given.pop(key)), given.pop("env_config", None) or {}
    if not isinstance(params, Mapping):
        raise ConfigError(f"{where}.env_config: {params!r} given; expected a section.")
    alias = ENVS.unalias(name)
    same = base.env.model_dump(mode="json") if base.env.type == alias.name else {}
    return {**same, **alias.params, **given, **params, "type": alias.name}

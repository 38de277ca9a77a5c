"""Which environments a file of RAGEN, align-anything, verl or AgentTrainer asks for.

They are named in five ways: by tags with `custom_envs`, by `env_cfgs`, by `env_template`, by files of prompts, or not
at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.config.component import ENVS
from turnwise.convert.table import SourceConfig, UnsupportedValue, as_int, at_key, drop_none
from turnwise.errors import did_you_mean

ENV_KEYS: dict[str, dict[str, str]] = {
    "sokoban": {"dim_x": "rows", "dim_y": "columns"},
    "webshop": {"data_path": "products"},
    "metamathqa": {"dataset_path": "path"},
    "countdown": {"train_path": "path"},
}
"""Keys of their environments that have another name here."""
IGNORED_ENV_KEYS: dict[str, str] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedEnv:
    """An environment that a file asks for."""

    tag: str
    settings: Mapping[str, Any]
    """Its type and its own settings, dotted."""
    groups: int | None = None
    max_actions: Any = None

    @property
    def has_rows(self) -> bool:
        """Whether its tasks are the rows of a file, so that the run can be counted in epochs."""
        return any(self.settings.get(name) for name in ("path", "games"))


def find_env(name: Any) -> tuple[str, dict[str, Any]]:
    """Our name of an environment and the settings that it stands for; `package:Class` is taken as it is."""
    if not isinstance(name, str) or not name:
        raise UnsupportedValue("expected an environment's name")
    alias = ENVS.resolve_alias(name)
    if alias.name not in ENVS and ":" not in name:
        known = did_you_mean(name, [*ENVS, *ENVS.aliases])
        raise UnsupportedValue(f"there is no such environment. {known} Your own is named as package.module:Class")
    return alias.name, dict(alias.params)


def find_envs(source: SourceConfig, is_multi: bool) -> list[ImportedEnv]:
    """All environments of a run, the main one first."""
    if source.get("agent_proxy.use_environment") is False:
        return [_find_prompts(source)]
    if (tags := source.get("es_manager.train.env_configs.tags")) is not None:
        return _find_tagged(source, tags)
    if (name := source.get("env_cfgs.env_name", "env_cfgs.env_type")) is not None:
        groups = source.get("es_manager.train.env_groups", "train_cfgs.per_device_prompt_batch_size")
        config = source.under("env_cfgs.env_config")
        return [_make_env("env_cfgs.env_name", "env_cfgs", str(name), name, config, groups=groups)]
    if (entries := source.get("env_template")) is not None:
        return _find_templates(source, entries)
    if not is_multi or source.get("data.train_files", "data_cfgs.train_datasets", "data_cfgs.train_data_files"):
        return [_find_prompts(source)]
    # The first of the environments that those projects name.
    return [ImportedEnv(tag="FrozenLake", settings={"type": "frozen_lake"}, groups=_num_agents(source))]


def _make_env(where: str, section: str, tag: str, name: Any, config: Mapping[str, Any], **fields: Any) -> ImportedEnv:
    """`where` is the key of the name, `section` that of `env_config`."""
    with at_key(where):
        env_type, params = find_env(name)
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if value is not None:
            with at_key(f"{section}.env_config.{key}"):
                settings |= _convert_env_key(env_type, key, value)
    arms = [settings.pop(arm, None) for arm in ("lo_arm_name", "hi_arm_name")]
    settings |= {"names": arms} if all(arms) else {}
    return ImportedEnv(tag=tag, settings={"type": env_type, **params, **settings}, **fields)


def _convert_env_key(env_type: str, key: str, value: Any) -> dict[str, Any]:
    """A key of `env_config` as settings of our environment."""
    first, _, rest = key.partition(".")
    if first == "render_mode" and value != "text":
        raise UnsupportedValue("text only: pictures cannot be played here")
    if first == "grid_lookup" and env_type == "sokoban":
        if rest.isdigit() and int(rest) < len(SOKOBAN_SYMBOLS):
            return {f"symbols.{SOKOBAN_SYMBOLS[int(rest)]}": value}
        raise UnsupportedValue(f"expected a number from 0 to {len(SOKOBAN_SYMBOLS) - 1} for each symbol")
    return {} if first in IGNORED_ENV_KEYS else {ENV_KEYS.get(env_type, {}).get(key, key): value}


def _find_tagged(source: SourceConfig, tags: Any) -> list[ImportedEnv]:
    where = "es_manager.train.env_configs"
    if not isinstance(tags, list) or not tags:
        raise UnsupportedValue(f"{where}.tags: expected a list of environments")
    groups = source.get("es_manager.train.env_groups")
    counts = source.get(f"{where}.n_groups")
    if counts is None:
        counts = [None] if groups is None and len(tags) == 1 else _share(groups, len(tags))
    if not isinstance(counts, list) or len(counts) != len(tags):
        raise UnsupportedValue(f"{where}.n_groups: expected a list with one number for each of the {len(tags)} tags")
    if groups is not None and sum(c for c in counts if isinstance(c, int)) != groups:
        raise UnsupportedValue(f"{where}.n_groups: their sum is not es_manager.train.env_groups = {groups!r}")
    seen: Counter[str] = Counter()
    envs = []
    for tag, count in zip(tags, counts, strict=True):
        seen[str(tag)] += 1
        unique = str(tag) if seen[str(tag)] == 1 else f"{tag}_{seen[str(tag)]}"
        section = f"custom_envs.{tag}"
        name = source.get(f"{section}.env_type", default=tag)
        config = source.under(f"{section}.env_config")
        most = source.get(f"{section}.max_actions_per_traj")
        tag_name = unique.replace(".", "_")
        where_tag = f"{where}.tags: {tag!r}"
        envs.append(_make_env(where_tag, section, tag_name, name, config, groups=count, max_actions=most))
    return envs


def _share(groups: Any, num_tags: int) -> list[int]:
    each, rest = divmod(as_int(8 if groups is None else groups), num_tags)
    return [each + (place < rest) for place in range(num_tags)]


def _find_templates(source: SourceConfig, entries: Any) -> list[ImportedEnv]:
    """One environment for each agent; equal ones are groups of one environment."""
    if not isinstance(entries, list) or not entries:
        raise UnsupportedValue("env_template: expected a list with one environment for each agent")
    agents = _num_agents(source) or len(entries)
    counts: dict[str, int] = {}
    envs: dict[str, ImportedEnv] = {}
    # If there are more agents than entries, the list repeats.
    for place, entry in enumerate(entries[:agents]):
        env = _read_template(entry)
        key = repr(sorted(env.settings.items()))
        counts[key] = counts.get(key, 0) + (agents - place - 1) // len(entries) + 1
        envs.setdefault(key, env)
    return [
        ImportedEnv(tag=f"{envs[key].tag}_{number}", settings=envs[key].settings, groups=count)
        for number, (key, count) in enumerate(counts.items())
    ]


def _read_template(entry: Any) -> ImportedEnv:
    fields = {"env_name": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, Mapping):
        raise UnsupportedValue("env_template: expected an environment's name or a mapping with env_name for each agent")
    name = next((fields[key] for key in ("env_name", "env_type", "type", "name") if fields.get(key)), None)
    config = fields.get("env_config", {key: value for key, value in fields.items() if fields.get(key) != name})
    if not isinstance(config, Mapping):
        raise UnsupportedValue("env_template: env_config: expected a mapping of settings")
    return _make_env(f"env_template: {name!r}", "env_template", str(name), name, config)


def _num_agents(source: SourceConfig) -> int | None:
    count = source.read(as_int, "agent.agent_length")
    if count is not None and count < 1:
        raise UnsupportedValue("agent.agent_length: expected a whole number above 0")
    return count


def _find_prompts(source: SourceConfig) -> ImportedEnv:
    settings = {
        "type": "prompts",
        "path": _one_file(source, "data.train_files", "data_cfgs.train_data_files", "data_cfgs.train_datasets"),
        "eval_path": _one_file(source, "data.val_files", "data_cfgs.eval_data_files", "data_cfgs.eval_datasets"),
        "prompt_field": source.get("data.prompt_key"),
    }
    groups = source.get("data.train_batch_size", "train_cfgs.per_device_prompt_batch_size")
    return ImportedEnv(tag="prompts", settings=drop_none(settings), groups=groups)


def _one_file(source: SourceConfig, *keys: str) -> Any:
    for key in keys:
        if (value := source.get(key)) is not None:
            if isinstance(value, list) and len(value) != 1:
                raise UnsupportedValue(f"{key}: one file is read; join several into one")
            return value[0] if isinstance(value, list) else value
    return None

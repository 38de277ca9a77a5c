"""Which environments a file of RAGEN, align-anything, verl or AgentTrainer asks for.

In: the file. Out: worlds with their settings and how many groups each plays. They are named in five ways: by tags with
`custom_envs`, by `env_cfgs`, by `env_template`, by files of prompts, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.config.component import ENVS
from turnwise.convert.table import ForeignFile, NoMeaning, Refusal, whole
from turnwise.errors import did_you_mean

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


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An environment that a file asks for."""

    tag: str
    settings: Mapping[str, Any]
    """Its type and its own settings, dotted."""
    groups: int | None = None
    max_actions: Any = None

    @property
    def has_rows(self) -> bool:
        """Whether its tasks are the rows of a file, so that epochs mean something."""
        return any(self.settings.get(name) for name in ("path", "games"))


def find_env(name: Any) -> tuple[str, dict[str, Any]]:
    """Our name of an environment and the settings that it stands for; `package:Class` is taken as it is."""
    if not isinstance(name, str) or not name:
        raise Refusal("expected an environment's name")
    alias = ENVS.unalias(name)
    if alias.name not in ENVS and ":" not in name:
        known = did_you_mean(name, [*ENVS, *ENVS.aliases])
        raise Refusal(f"there is no such environment. {known} Your own is named as package.module:Class")
    return alias.name, dict(alias.params)


def find_worlds(file: ForeignFile, is_multi: bool) -> list[World]:
    """All environments of a run, the first one first."""
    if file.get("agent_proxy.use_environment") is False:
        return [_prompts(file)]
    if (tags := file.get("es_manager.train.env_configs.tags")) is not None:
        return _tagged(file, tags)
    if (name := file.get("env_cfgs.env_name", "env_cfgs.env_type")) is not None:
        return [_named(file, name)]
    if (entries := file.get("env_template")) is not None:
        return _templates(file, entries)
    if not is_multi or file.get("data.train_files", "data_cfgs.train_datasets", "data_cfgs.train_data_files"):
        return [_prompts(file)]
    # The first of the environments that those projects name.
    return [World(tag="FrozenLake", settings={"type": "frozen_lake"}, groups=_agents(file))]


def _tagged(file: ForeignFile, tags: Any) -> list[World]:
    where = "es_manager.train.env_configs"
    if not isinstance(tags, list) or not tags:
        raise Refusal(f"{where}.tags: expected a list of environments")
    groups = file.get("es_manager.train.env_groups")
    counts = file.get(f"{where}.n_groups")
    if counts is None:
        counts = [None] if groups is None and len(tags) == 1 else _shared(groups, len(tags))
    if not isinstance(counts, list) or len(counts) != len(tags):
        raise Refusal(f"{where}.n_groups: expected a list with one number for each of the {len(tags)} tags")
    if groups is not None and sum(c for c in counts if isinstance(c, int)) != groups:
        raise Refusal(f"{where}.n_groups: their sum is not es_manager.train.env_groups = {groups!r}")
    seen: dict[str, int] = {}
    worlds = []
    for tag, count in zip(tags, counts, strict=True):
        seen[tag] = seen.get(tag, 0) + 1
        unique = str(tag) if seen[tag] == 1 else f"{tag}_{seen[tag]}"
        worlds.append(_tagged_world(file, tag, unique, count))
    return worlds


def _shared(groups: Any, num_tags: int) -> list[int]:
    each, rest = divmod(whole(8 if groups is None else groups), num_tags)
    return [each + (place < rest) for place in range(num_tags)]


def _tagged_world(file: ForeignFile, tag: Any, unique: str, groups: Any) -> World:
    section = f"custom_envs.{tag}"
    try:
        env_type, variant = find_env(file.get(f"{section}.env_type", default=tag))
    except Refusal as refusal:
        raise Refusal(f"es_manager.train.env_configs.tags: {tag!r}: {refusal}") from refusal
    own = _translated(env_type, section, file.under(f"{section}.env_config"))
    return World(
        tag=unique.replace(".", "_"),
        settings={"type": env_type, **variant, **own},
        groups=groups,
        max_actions=file.get(f"{section}.max_actions_per_traj"),
    )


def _translated(env_type: str, section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in keys.items():
        try:
            made |= translate_env_key(env_type, key, value) if value is not None else {}
        except NoMeaning:
            continue
        except Refusal as refusal:
            raise Refusal(f"{section}.env_config.{key}: {refusal}") from refusal
    arms = [made.pop(name, None) for name in ("lo_arm_name", "hi_arm_name")]
    return made | {"names": arms} if all(arms) else made


def _named(file: ForeignFile, name: Any) -> World:
    try:
        env_type, variant = find_env(name)
    except Refusal as refusal:
        raise Refusal(f"env_cfgs.env_name: {refusal}") from refusal
    own = _translated(env_type, "env_cfgs", file.under("env_cfgs.env_config"))
    groups = file.get("es_manager.train.env_groups", "train_cfgs.per_device_prompt_batch_size")
    return World(tag=str(name), settings={"type": env_type, **variant, **own}, groups=groups)


def _templates(file: ForeignFile, entries: Any) -> list[World]:
    """One environment for each agent; equal ones are groups of one world."""
    if not isinstance(entries, list) or not entries:
        raise Refusal("env_template: expected a list with one environment for each agent")
    agents = _agents(file) or len(entries)
    counts: dict[str, int] = {}
    worlds: dict[str, World] = {}
    # Agents beyond the list begin it anew.
    for place, entry in enumerate(entries[:agents]):
        world = _template(entry)
        key = repr(sorted(world.settings.items()))
        counts[key] = counts.get(key, 0) + (agents - place - 1) // len(entries) + 1
        worlds.setdefault(key, world)
    return [
        World(tag=f"{worlds[key].tag}_{number}", settings=worlds[key].settings, groups=count)
        for number, (key, count) in enumerate(counts.items())
    ]


def _template(entry: Any) -> World:
    fields = {"env_name": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, Mapping):
        raise Refusal("env_template: expected an environment's name or a mapping with env_name for each agent")
    name = next((fields[key] for key in ("env_name", "env_type", "type", "name") if fields.get(key)), None)
    try:
        env_type, variant = find_env(name)
    except Refusal as refusal:
        raise Refusal(f"env_template: {name!r}: {refusal}") from refusal
    given = fields.get("env_config", {key: value for key, value in fields.items() if fields.get(key) != name})
    if not isinstance(given, Mapping):
        raise Refusal("env_template: env_config: expected a mapping of settings")
    return World(tag=str(name), settings={"type": env_type, **variant, **_translated(env_type, "env_template", given)})


def _agents(file: ForeignFile) -> int | None:
    length = file.get("agent.agent_length")
    try:
        count = None if length is None else whole(length)
        if count is not None and count < 1:
            raise Refusal("expected a whole number above 0")
        return count
    except Refusal as refusal:
        raise Refusal(f"agent.agent_length: {refusal}") from refusal


def _prompts(file: ForeignFile) -> World:
    settings = {
        "type": "prompts",
        "path": _one_file(file, "data.train_files", "data_cfgs.train_data_files", "data_cfgs.train_datasets"),
        "eval_path": _one_file(file, "data.val_files", "data_cfgs.eval_data_files", "data_cfgs.eval_datasets"),
        "prompt_field": file.get("data.prompt_key"),
    }
    groups = file.get("data.train_batch_size", "train_cfgs.per_device_prompt_batch_size")
    return World(
        tag="prompts", settings={key: value for key, value in settings.items() if value is not None}, groups=groups
    )


def _one_file(file: ForeignFile, *keys: str) -> Any:
    for key in keys:
        if (value := file.get(key)) is not None:
            if isinstance(value, list) and len(value) != 1:
                raise Refusal(f"{key}: one file is read; join several into one")
            return value[0] if isinstance(value, list) else value
    return None

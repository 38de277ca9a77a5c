"""How many groups of which environments play: given one by one, or in the sections that users of RAGEN know.

In: numbers and tags, or a mapping with `es_manager` (or that section, or its `train` or `val` alone). Out: EnvGroups,
or a ConfigError that names the key. It refuses to know how an environment is made or played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.errors import ConfigError, did_you_mean

_KEYS = ("env_groups", "group_size", "env_configs")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfigs:
    """Which tags play, and in how many groups each: `tags=("lake", "bandit"), n_groups=(6, 2)`."""

    tags: tuple[str, ...]
    n_groups: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.tags) != len(self.n_groups):
            raise ConfigError(
                f"{len(self.tags)} tags and {len(self.n_groups)} n_groups given; expected as many of each."
            )

    @classmethod
    def read(cls, given: EnvConfigs | Mapping[str, Any], env_groups: int) -> EnvConfigs:
        """As they are, or from `{"tags": [...], "n_groups": [...]}`; one tag alone may leave `n_groups` out."""
        if isinstance(given, EnvConfigs):
            return given
        keys = ("tags", "n_groups")
        for key in given:
            if key not in keys:
                raise ConfigError(f"env_configs.{key}: there is no such key. {did_you_mean(str(key), keys)}")
        tags, n_groups = given.get("tags"), given.get("n_groups")
        if not _is_list(tags, str) or not tags:
            raise ConfigError(f"env_configs.tags: {tags!r} given; expected a list such as ['FrozenLake', 'Sokoban'].")
        if n_groups is None and len(tags) == 1:
            n_groups = [env_groups]
        if n_groups is None or not _is_list(n_groups, int):
            raise ConfigError(f"env_configs.n_groups: {n_groups!r} given; expected a number of groups for each tag.")
        return cls(tags=tuple(tags), n_groups=tuple(n_groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvGroups:
    """The groups of a rollout: `env_groups` in all, of `group_size` siblings each, shared out over tags."""

    env_groups: int
    group_size: int
    env_configs: EnvConfigs

    def __post_init__(self) -> None:
        n_groups = self.env_configs.n_groups
        if sum(n_groups) != self.env_groups:
            raise ConfigError(
                f"env_configs.n_groups {list(n_groups)} adds up to {sum(n_groups)}; expected env_groups = "
                f"{self.env_groups}."
            )

    @classmethod
    def read(cls, config: Mapping[str, Any], split: str, **given: Any) -> EnvGroups:
        """`given` counts before what stands in `config`."""
        found = {**find_section(config, split), **{key: value for key, value in given.items() if value is not None}}
        if missing := [key for key in _KEYS if key not in found]:
            raise ConfigError(f"{missing[0]} is missing; EnvStateManager needs {', '.join(_KEYS)}.")
        numbers = {key: found[key] for key in ("env_groups", "group_size")}
        for key, number in numbers.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigError(f"{key}: {number!r} given; expected a whole number above 0.")
        configs = found["env_configs"]
        if not isinstance(configs, EnvConfigs | Mapping):
            raise ConfigError(f"env_configs: {configs!r} given; expected a section with tags and n_groups.")
        return cls(**numbers, env_configs=EnvConfigs.read(configs, numbers["env_groups"]))


def find_section(config: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The numbers of a split, wherever in the layout the mapping begins."""
    found: Any = config
    for key in ("es_manager", "train" if split == "train" else "val"):
        found = found.get(key, found)
        if not isinstance(found, Mapping):
            raise ConfigError(f"{key}: {found!r} given; expected a section with {', '.join(_KEYS)}.")
    return {key: found[key] for key in _KEYS if key in found}


def _is_list(given: object, kind: type) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(one, kind) for one in given)

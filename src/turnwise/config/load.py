"""Text in, frozen settings out: defaults <- recipe (`extends:`) <- overrides.

OmegaConf merges and resolves `${…}`; pydantic gives it meaning. Every mistake becomes one ConfigError that lists all
that is wrong, each with its config path. No OmegaConf object leaves this file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from turnwise.config.choices import made_for, without_switched
from turnwise.config.fitted import fill_in
from turnwise.config.problems import describe_problems
from turnwise.config.recipes import describe_namesake, find_base, find_recipe
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.env import EnvSettings
from turnwise.config.shorthands import expand_shorthands
from turnwise.errors import ConfigError

_log = logging.getLogger("turnwise.config")


def load_settings(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> TurnwiseSettings:
    """A recipe's name, file or mapping, and `key.path=value` overrides (or a mapping of them)."""
    if isinstance(recipe, Mapping):
        merged, name = _merge(OmegaConf.create({}), dict(recipe), "the given mapping"), "custom"
    else:
        path = find_recipe(str(recipe))
        _tell(describe_namesake(str(recipe)))
        merged, name = _read_with_bases(path, ()), path.stem
    for words, item in _override_items(overrides):
        merged = _merge(merged, item, f"override '{words}'")
    return _validate(_resolve(merged), name)


def parse_params(words: Sequence[str]) -> dict[str, Any]:
    """`size=5 view=grid` as keyword arguments, with YAML's idea of numbers and booleans."""
    merged = OmegaConf.create({})
    for word in words:
        merged = _merge(merged, _parse_override(word), f"'{word}'")
    return _resolve(merged)


def dump_settings(settings: TurnwiseSettings) -> str:
    """The resolved settings as YAML; loading it gives the same settings."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read_with_bases(path: Path, seen: tuple[Path, ...]) -> DictConfig:
    if path.resolve() in seen:
        raise ConfigError(f"'{path}' extends itself: {' -> '.join(p.name for p in (*seen, path))}")
    config = _read_yaml(path)
    base_name = config.pop("extends", None)
    if base_name is None:
        return config
    _tell(describe_namesake(str(base_name), beside=path.parent))
    base = _read_with_bases(find_base(str(base_name), of=path), (*seen, path.resolve()))
    return _merge(base, config, str(path))


def _tell(notice: str | None) -> None:
    if notice:
        _log.warning(notice)


def _read_yaml(path: Path) -> DictConfig:
    try:
        config = OmegaConf.load(path)
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(f"'{path}' is not valid YAML: {_one_line(error)}") from error
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}.") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"'{path}' must hold settings as 'key: value'; found {type(config).__name__}.")
    return config


def _override_items(overrides: Sequence[str] | Mapping[str, object]) -> list[tuple[str, DictConfig]]:
    """Each override as a config of its own, beside the words it was given in."""
    if isinstance(overrides, Mapping):
        return [(f"{key}={value}", _nest(str(key), value)) for key, value in overrides.items()]
    return [(text, _parse_override(text)) for text in overrides]


def _parse_override(text: str) -> DictConfig:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override '{text}' is not of the form key.path=value.")
    try:
        return OmegaConf.from_dotlist([text])
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"override '{text}': the value is not valid YAML: {_one_line(error)}") from error


def _nest(key: str, value: object) -> DictConfig:
    for part in reversed(key.split(".")):
        value = {part: value}
    return cast(DictConfig, OmegaConf.create(cast(dict[str, Any], value)))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _merge(base: DictConfig, new: DictConfig | dict[str, Any], source: str) -> DictConfig:
    try:
        kept = without_switched(_as_dict(base), _as_dict(OmegaConf.create(new)))
        return cast(DictConfig, OmegaConf.merge(OmegaConf.create(kept), new))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"{source} does not fit the settings it changes: {_one_line(error)}") from error


def _as_dict(config: object) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(cast(DictConfig, config), resolve=False))


def _resolve(config: DictConfig) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"a reference cannot be resolved: {_one_line(error)}") from error


def _validate(raw: dict[str, Any], name: str) -> TurnwiseSettings:
    raw = fill_in(expand_shorthands({**raw, "recipe": raw.get("recipe") or name}))
    settings_class = made_for(raw)
    try:
        return settings_class.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe_problems(error, settings_class)) from error


def env_params(env: EnvSettings, split: str) -> dict[str, Any]:
    """The chosen environment's own settings for a split: `env.train` applies to the training split alone."""
    own = env.model_dump(exclude={"type", "train"})
    return {**own, **env.train} if split == "train" else own

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
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from turnwise.config.choices import made_for, without_switched
from turnwise.config.dialects.known import OUR_SECTIONS, describe_likeness, detect_dialect
from turnwise.config.dialects.load import (
    find_composed,
    foreign_key,
    pick_ours,
    translate_config,
    translate_overrides,
)
from turnwise.config.dialects.table import Dialect
from turnwise.config.dialects.translate import Translation
from turnwise.config.fitted import fill_in
from turnwise.config.other_files import describe_other_file
from turnwise.config.problems import describe_problems
from turnwise.config.recipes import describe_namesake, find_base, find_recipe
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.env import EnvSettings
from turnwise.config.shorthands import expand_shorthands
from turnwise.errors import ConfigError

_log = logging.getLogger("turnwise.config")
_LENGTHS = ("learn.steps", "tasks.epochs")
_SETTINGS_SUFFIXES = (".yaml", ".yml", ".json")


def load_settings(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> TurnwiseSettings:
    """A recipe's name, file or mapping, and `key.path=value` overrides (or a mapping of them).

    All of them may speak in the words of another project (`config/dialects`).
    """
    return load_with_translation(recipe, overrides)[0]


def load_with_translation(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> tuple[TurnwiseSettings, Translation | None]:
    """The settings, and what has become of every key where the file is one of another project."""
    raw, translation = _read(recipe, overrides)
    try:
        return validate(raw), translation
    except ConfigError as error:
        if translation is not None:
            raise ConfigError(translation.name_sources(str(error))) from error
        if likeness := describe_likeness(raw):
            raise ConfigError(f"{error}\n  {likeness}") from error
        raise


def read_keys(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> dict[str, Any]:
    """The keys of a recipe with its bases and overrides, before anything is known about what they mean."""
    return _read(recipe, overrides)[0]


def _read(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object]
) -> tuple[dict[str, Any], Translation | None]:
    """All keys in our own words."""
    source, name = _read_source(recipe)
    dialect = detect_dialect(source)
    ours, theirs = _split_overrides(overrides, dialect)
    translation = None
    if dialect is not None:
        for words, item in theirs:
            source = _merge_foreign(source, item, f"override '{words}'")
        translation = translate_config(dialect, source)
        source = _merge(_our_words(translation), pick_ours(dialect, source), "a section of turnwise")
        idle = translation.count("no meaning")
        _tell(
            f"read as a file of {dialect.name}: {translation.count('mapped')} keys mapped, {idle} without meaning here"
        )
    elif theirs:
        changes = OmegaConf.create({})
        for words, item in theirs:
            changes = _merge_foreign(changes, item, f"override '{words}'")
        translation = translate_overrides(changes)
        source = _merge(source, _our_words(translation), "an override")
    _refuse_two_lengths([item for _, item in ours])
    for words, item in ours:
        source = _merge(source, item, f"override '{words}'")
    raw = _resolve(source)
    return fill_in(expand_shorthands({**raw, "recipe": raw.get("recipe") or name})), translation


def _refuse_two_lengths(overrides: Sequence[DictConfig]) -> None:
    """A length given later replaces one of the other kind; of two given together nobody knows which is meant."""
    given = {key for item in overrides for key in _LENGTHS if _says(item, key)}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(_LENGTHS)} given; both say how long the run is. Leave one of them away.")


def _says(config: DictConfig, key: str) -> bool:
    section, name = key.split(".")
    inner = _as_dict(config).get(section)
    return isinstance(inner, dict) and inner.get(name) is not None


def translate_file(recipe: str | Path, overrides: Sequence[str] = ()) -> Translation | None:
    """What becomes of a file of another project, refused keys included; None for a file in our own words."""
    source, _ = _read_source(recipe)
    dialect = detect_dialect(source)
    if dialect is None:
        return None
    for words, item in _split_overrides(overrides, dialect)[1]:
        source = _merge_foreign(source, item, f"override '{words}'")
    return translate_config(dialect, source)


def _read_source(recipe: str | Path | Mapping[str, object]) -> tuple[DictConfig, str]:
    if isinstance(recipe, Mapping):
        return _merge_foreign(OmegaConf.create({}), dict(recipe), "the given mapping"), "custom"
    path = find_recipe(str(recipe))
    _tell(describe_namesake(str(recipe)))
    return _read_with_bases(path, ()), path.stem


def _our_words(translation: Translation) -> DictConfig:
    translation.refuse_problems()
    return cast(DictConfig, OmegaConf.create(translation.nested()))


def _split_overrides(
    overrides: Sequence[str] | Mapping[str, object], dialect: Dialect | None
) -> tuple[list[tuple[str, DictConfig]], list[tuple[str, DictConfig]]]:
    """Overrides in our words, and those in another project's; their keys made whole."""
    ours: list[tuple[str, DictConfig]] = []
    theirs: list[tuple[str, DictConfig]] = []
    for words, key, item in _override_items(overrides):
        meant = foreign_key(key, dialect)
        if meant is None:
            ours.append((words, item))
        else:
            theirs.append((words, item if meant == key else _nest(meant, item[key])))
    return ours, theirs


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
    for part in find_composed(config, path.parent):
        config = _merge_foreign(_read_with_bases(part, (*seen, path.resolve())), config, str(path))
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
        if path.suffix not in _SETTINGS_SUFFIXES:
            raise ConfigError(describe_other_file(path)) from error
        raise ConfigError(f"'{path}' is not valid YAML: {_one_line(error)}") from error
    except OSError as error:
        # OmegaConf says the same of a file that holds a number alone.
        reason = error.strerror
        raise ConfigError(f"'{path}' cannot be read: {reason}." if reason else describe_other_file(path)) from error
    if isinstance(config, ListConfig) and path.suffix in _SETTINGS_SUFFIXES:
        raise ConfigError(f"'{path}' must hold settings as 'key: value'; found a list.")
    if not isinstance(config, DictConfig) or _is_text(config, path):
        raise ConfigError(describe_other_file(path))
    return config


def _is_text(config: DictConfig, path: Path) -> bool:
    """OmegaConf takes plain text for a key without a value, and YAML takes 'Question: ...' for a setting."""
    if path.suffix in _SETTINGS_SUFFIXES:
        return len(config) == 1 and not isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
    return not config.keys() & OUR_SECTIONS and detect_dialect(config) is None


def _override_items(overrides: Sequence[str] | Mapping[str, object]) -> list[tuple[str, str, DictConfig]]:
    """Each override as a config of its own, beside the words it was given in and its key."""
    if isinstance(overrides, Mapping):
        return [(f"{key}={value}", str(key), _nest(str(key), value)) for key, value in overrides.items()]
    return [(text, text.partition("=")[0].strip(), _parse_override(text)) for text in overrides]


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
        if _says(OmegaConf.create(new), "learn.steps") and isinstance(kept.get("tasks"), dict):
            kept = {**kept, "tasks": {key: value for key, value in kept["tasks"].items() if key != "epochs"}}
        return cast(DictConfig, OmegaConf.merge(OmegaConf.create(kept), new))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"{source} does not fit the settings it changes: {_one_line(error)}") from error


def _merge_foreign(base: DictConfig, new: DictConfig | dict[str, Any], source: str) -> DictConfig:
    """As `_merge`, for keys of which ours may be none: nothing is dropped where another choice is made."""
    try:
        return cast(DictConfig, OmegaConf.merge(base, new))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(f"{source} does not fit the settings it changes: {_one_line(error)}") from error


def _as_dict(config: object) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(cast(DictConfig, config), resolve=False))


def _resolve(config: DictConfig) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"a reference cannot be resolved: {_one_line(error)}") from error


def validate(raw: dict[str, Any]) -> TurnwiseSettings:
    """Keys in, settings out, or one ConfigError."""
    settings_class = made_for(raw)
    try:
        return settings_class.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe_problems(error, settings_class)) from error


def env_params(env: EnvSettings, split: str) -> dict[str, Any]:
    """The chosen environment's own settings for a split: `env.train` applies to the training split alone."""
    own = env.model_dump(exclude={"type", "train"})
    return {**own, **env.train} if split == "train" else own

"""Text in, frozen settings out: defaults <- recipe (`extends:`, `pretrained:`) <- overrides.

OmegaConf merges and resolves `${…}`; pydantic gives it meaning. Every mistake becomes one ConfigError that lists all
that is wrong, each with its config path. No OmegaConf object leaves this file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from turnwise.config.choices import made_for, without_switched
from turnwise.config.dialects.known import describe_likeness, detect_dialect
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
from turnwise.config.other_files import read_settings_file
from turnwise.config.pretrained import (
    Change,
    Layer,
    applies_to,
    describe_in_comment,
    find_changes,
    give_way,
    refuse_broken,
    split_layer,
    without_tiny,
)
from turnwise.config.problems import describe_problems, one_line, shorten
from turnwise.config.recipes import describe_namesake, find_base, find_recipe
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.secrets import hide_secrets
from turnwise.config.sections.env import EnvSettings
from turnwise.config.shorthands import expand_shorthands
from turnwise.errors import ConfigError
from turnwise.infra.parsing import MAX_DEPTH, check_yaml_depth

_log = logging.getLogger("turnwise.config")
_MERGE_ERRORS = (OmegaConfBaseException, ValueError, TypeError, RecursionError)
"""What OmegaConf raises about values and references; RecursionError where references are nested in each other."""
_LENGTHS = ("learn.steps", "tasks.epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, and how they came about."""

    settings: TurnwiseSettings
    translation: Translation | None
    """What has become of every key, where the file is one of another project."""
    pretrained: tuple[Change, ...]
    """What the recipe's `pretrained:` changed; nothing where `model.path` is 'tiny'."""


def load_settings(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> TurnwiseSettings:
    """A recipe's name, file or mapping, and `key.path=value` overrides (or a mapping of them).

    All of them may speak in the words of another project (`config/dialects`).
    """
    return load_recipe(recipe, overrides).settings


def load_recipe(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> Loaded:
    """As `load_settings`, with what was translated and what the section `pretrained` changed."""
    keys = _read(recipe, overrides)
    try:
        settings = validate(keys.raw)
    except ConfigError as error:
        if keys.translation is not None:
            raise ConfigError(keys.translation.name_sources(str(error))) from error
        if likeness := describe_likeness(keys.raw):
            raise ConfigError(f"{error}\n  {likeness}") from error
        raise
    return Loaded(settings=settings, translation=keys.translation, pretrained=_changes(keys.plain, settings))


def load_with_translation(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> tuple[TurnwiseSettings, Translation | None]:
    """The settings, and what has become of every key where the file is one of another project."""
    loaded = load_recipe(recipe, overrides)
    return loaded.settings, loaded.translation


def read_keys(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> dict[str, Any]:
    """The keys of a recipe with its bases and overrides, before anything is known about what they mean."""
    return _read(recipe, overrides).raw


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    raw: dict[str, Any]
    plain: dict[str, Any] | None
    """Without the sections `pretrained`; None where none applies."""
    translation: Translation | None


def _read(recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object]) -> _Keys:
    """All keys in our own words."""
    layers, name = _read_source(recipe)
    source = _merge_layers(_plain(layers))
    dialect = detect_dialect(source)
    ours, theirs = _split_overrides(overrides, dialect)
    translation = None
    if dialect is not None:
        for words, item in theirs:
            source = _merge_foreign(source, item, f"override '{words}'")
        translation = translate_config(dialect, source)
        source = _merge(_our_words(translation), pick_ours(dialect, source), "a section of turnwise")
        layers = [Layer(keys=_as_dict(source), source=name)]
        idle = translation.count("no meaning")
        _tell(
            f"read as a file of {dialect.name}: {translation.count('mapped')} keys mapped, {idle} without meaning here"
        )
    elif theirs:
        changes = OmegaConf.create({})
        for words, item in theirs:
            changes = _merge_foreign(changes, item, f"override '{words}'")
        translation = translate_overrides(changes)
        layers = [*layers, Layer(keys=_as_dict(_our_words(translation)), source="an override")]
    _refuse_two_lengths([item for _, item in ours])
    for words, item in ours:
        layers = [*layers, *split_layer(_as_dict(item), f"override '{words}'")]
    return _resolve_layers(layers, name, translation)


def _resolve_layers(layers: Sequence[Layer], name: str, translation: Translation | None) -> _Keys:
    """What the layers come to; a section that is broken is told also where it does not apply."""
    layers = give_way(layers)

    def finish(merged: DictConfig) -> dict[str, Any]:
        raw = _resolve(merged)
        return fill_in(expand_shorthands({**raw, "recipe": raw.get("recipe") or name}))

    plain = finish(_merge_layers(_plain(layers)))
    sections = [number for number, layer in enumerate(layers) if layer.is_pretrained]
    for number in sections:
        try:
            so_far = finish(_merge_layers(layers[: number + 1]))
        except ConfigError:
            # What it refers to may come with a later layer.
            continue
        refuse_broken(so_far, layers[number].keys)
    if not sections or not applies_to(plain):
        return _Keys(raw=plain, plain=None, translation=translation)
    return _Keys(raw=finish(_merge_layers(layers)), plain=plain, translation=translation)


def _plain(layers: Iterable[Layer]) -> list[Layer]:
    return [layer for layer in layers if not layer.is_pretrained]


def _merge_layers(layers: Iterable[Layer]) -> DictConfig:
    merged = OmegaConf.create({})
    for layer in layers:
        base = OmegaConf.create(without_tiny(_as_dict(merged))) if layer.is_pretrained else merged
        merged = _merge(base, dict(layer.keys), layer.source)
    return merged


def _changes(plain: dict[str, Any] | None, settings: TurnwiseSettings) -> tuple[Change, ...]:
    """What differs from the settings without the section; all that is not default where those are no settings."""
    if plain is None:
        return ()
    try:
        return find_changes(validate(plain), settings)
    except ConfigError:
        # An override may fit the section alone, as model.lora.rank does.
        env = {"env": settings.env.model_dump(mode="json")}
        return find_changes(validate(fill_in(env)), settings)


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
    source = _merge_layers(_plain(_read_source(recipe)[0]))
    dialect = detect_dialect(source)
    if dialect is None:
        return None
    for words, item in _split_overrides(overrides, dialect)[1]:
        source = _merge_foreign(source, item, f"override '{words}'")
    return translate_config(dialect, source)


def _read_source(recipe: str | Path | Mapping[str, object]) -> tuple[list[Layer], str]:
    if isinstance(recipe, Mapping):
        given = _merge_foreign(OmegaConf.create({}), dict(recipe), "the given mapping")
        return split_layer(_as_dict(given), "the given mapping"), "custom"
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


def dump_settings(settings: TurnwiseSettings, pretrained: Sequence[Change] = ()) -> str:
    """The resolved settings as YAML; loading it gives the same settings. A comment names what `pretrained` changed.

    Secrets stay where they are: in the environment, or with whoever gave them.
    """
    text = yaml.safe_dump(hide_secrets(settings.model_dump(mode="json")), sort_keys=False, allow_unicode=True)
    return describe_in_comment(pretrained) + text


def _read_with_bases(path: Path, seen: tuple[Path, ...]) -> list[Layer]:
    """The layers of a file, its bases first."""
    if path.resolve() in seen:
        raise ConfigError(f"'{path}' extends itself: {' -> '.join(p.name for p in (*seen, path))}")
    config = read_settings_file(path)
    for part in find_composed(config, path.parent):
        composed = _merge_layers(_plain(_read_with_bases(part, (*seen, path.resolve()))))
        config = _merge_foreign(composed, config, str(path))
    keys = _as_dict(config)
    base_name = keys.pop("extends", None)
    if OmegaConf.is_interpolation(config, "extends"):
        raise ConfigError(f"'{path}': extends: '{base_name}' given; expected the name of a recipe or a file as it is.")
    own = split_layer(keys, str(path))
    if base_name is None:
        return own
    _tell(describe_namesake(str(base_name), beside=path.parent))
    return [*_read_with_bases(find_base(str(base_name), of=path), (*seen, path.resolve())), *own]


def _tell(notice: str | None) -> None:
    if notice:
        _log.warning(notice)


def _override_items(overrides: Sequence[str] | Mapping[str, object]) -> list[tuple[str, str, DictConfig]]:
    """Each override as a config of its own, beside the words it was given in and its key."""
    if isinstance(overrides, Mapping):
        return [(f"{key}={value}", str(key), _nest(str(key), value)) for key, value in overrides.items()]
    return [(text, text.partition("=")[0].strip(), _parse_override(text)) for text in overrides]


def _parse_override(text: str) -> DictConfig:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override '{shorten(text)}' is not of the form key.path=value.")
    _refuse_endless_key(key)
    try:
        check_yaml_depth(value)
        return OmegaConf.from_dotlist([text])
    except (yaml.YAMLError, IndexError, AttributeError, *_MERGE_ERRORS) as error:
        raise ConfigError(f"override '{shorten(text)}': the value is not valid YAML: {one_line(error)}") from error


def _refuse_endless_key(key: str) -> None:
    if key.count(".") + key.count("[") >= MAX_DEPTH:
        raise ConfigError(f"override '{shorten(key)}' must be at most {MAX_DEPTH} levels deep.")


def _nest(key: str, value: object) -> DictConfig:
    _refuse_endless_key(key)
    nested = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    try:
        return cast(DictConfig, OmegaConf.create(cast(dict[str, Any], nested)))
    except _MERGE_ERRORS as error:
        raise ConfigError(f"override '{key}': the value cannot be a setting: {one_line(error)}") from error


def _merge(base: DictConfig, new: DictConfig | dict[str, Any], source: str) -> DictConfig:
    """`base` with what is new in it; only the sections that change are looked at, for there are many small changes."""
    try:
        changes = OmegaConf.create(new)
        given = _as_dict(changes)
        old = {key: _as_dict(base[key]) for key in given if _is_section(base, key)}
        base.update({key: kept for key, kept in without_switched(old, given).items() if kept != old[key]})
        if _says(changes, "learn.steps") and _is_section(base, "tasks"):
            base.tasks.pop("epochs", None)
        return cast(DictConfig, OmegaConf.unsafe_merge(base, changes))
    except _MERGE_ERRORS as error:
        raise ConfigError(f"{source} does not fit the settings it changes: {one_line(error)}") from error


def _is_section(config: DictConfig, key: str) -> bool:
    return not OmegaConf.is_interpolation(config, key) and OmegaConf.is_dict(config.get(key))


def _merge_foreign(base: DictConfig, new: DictConfig | dict[str, Any], source: str) -> DictConfig:
    """As `_merge`, for keys of which ours may be none: nothing is dropped where another choice is made."""
    try:
        return cast(DictConfig, OmegaConf.merge(base, new))
    except _MERGE_ERRORS as error:
        raise ConfigError(f"{source} does not fit the settings it changes: {one_line(error)}") from error


def _as_dict(config: object) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(cast(DictConfig, config), resolve=False))


def _resolve(config: DictConfig) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"a reference cannot be resolved: {one_line(error)}") from error


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

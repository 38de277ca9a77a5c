"""Text in, frozen settings out: defaults <- recipe (`extends:`, `pretrained:`) <- overrides.

OmegaConf merges and resolves `${…}`; pydantic gives it meaning. Every mistake becomes one ConfigError that lists all
that is wrong, each with its config path. No OmegaConf object leaves this file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from turnwise.config.derived_defaults import (
    Change,
    Layer,
    applies_to,
    describe_in_comment,
    expand_shorthands,
    fill_defaults,
    find_changes,
    give_way,
    refuse_broken,
    split_layer,
    without_tiny,
)
from turnwise.config.formats import CONFIG_FORMATS, ConfigFormat, Translation
from turnwise.config.kinds import Choice, EnvSettings, params_class
from turnwise.config.recipes import find_base, find_composed, find_recipe, read_settings_file, warn_shadowed_recipe
from turnwise.config.schema import CHOICES, TurnwiseSettings, choice_at, made_for, without_switched
from turnwise.config.settings import RawSettings, describe_problem, describe_problems, one_line, shorten, written_keys
from turnwise.config.trust import hide_secrets
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

    All of them may be in the words of another project (`turnwise.convert`).
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
        if guess := CONFIG_FORMATS.guess_project(keys.raw):
            raise ConfigError(f"{error}\n  {guess}") from error
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
) -> RawSettings:
    """The keys of a recipe with its bases and overrides, before they are validated."""
    return _read(recipe, overrides).raw


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    raw: RawSettings
    plain: RawSettings | None
    """Without the sections `pretrained`; None where none applies."""
    translation: Translation | None


def _read(recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object]) -> _Keys:
    """All keys in our own words."""
    layers, name = _read_source(recipe)
    source = _merge_layers(_plain(layers))
    format_ = CONFIG_FORMATS.detect(source)
    ours, theirs = _split_overrides(overrides, format_)
    translation = None
    if format_ is not None:
        for words, item in theirs:
            source = _merge_foreign(source, item, f"override '{words}'")
        translation = format_.convert(source)
        source = _merge(_our_words(translation), format_.pick_native_keys(source), "a section of turnwise")
        layers = [Layer(keys=_as_dict(source), source=name)]
        idle = translation.count("no meaning")
        _warn(
            f"read as a file of {format_.name}: {translation.count('mapped')} keys mapped, {idle} without meaning here"
        )
    elif theirs:
        changes = OmegaConf.create({})
        for words, item in theirs:
            changes = _merge_foreign(changes, item, f"override '{words}'")
        translation = CONFIG_FORMATS.convert_overrides(changes)
        layers = [*layers, Layer(keys=_as_dict(_our_words(translation)), source="an override")]
    _refuse_two_lengths([item for _, item in ours])
    for words, item in ours:
        layers = [*layers, *split_layer(_as_dict(item), f"override '{words}'")]
    return _resolve_layers(layers, name, translation)


def _resolve_layers(layers: Sequence[Layer], name: str, translation: Translation | None) -> _Keys:
    """Merge the layers. A `pretrained` section with mistakes raises also if it does not apply."""
    layers = give_way(layers)

    def finish(merged: DictConfig) -> RawSettings:
        raw = _resolve(merged)
        return fill_defaults(expand_shorthands({**raw, "recipe": raw.get("recipe") or name}))

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


def _changes(plain: RawSettings | None, settings: TurnwiseSettings) -> tuple[Change, ...]:
    """What differs from the settings without the section; all that is not default where those are no settings."""
    if plain is None:
        return ()
    try:
        return find_changes(validate(plain), settings)
    except ConfigError:
        # An override may fit the section alone, as model.lora.rank does.
        env = {"env": settings.env.model_dump(mode="json")}
        return find_changes(validate(fill_defaults(env)), settings)


def _refuse_two_lengths(overrides: Sequence[DictConfig]) -> None:
    """Raise if both lengths are given at once; one that is given later replaces the other."""
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
    format_ = CONFIG_FORMATS.detect(source)
    if format_ is None:
        return None
    for words, item in _split_overrides(overrides, format_)[1]:
        source = _merge_foreign(source, item, f"override '{words}'")
    return format_.convert(source)


def _read_source(recipe: str | Path | Mapping[str, object]) -> tuple[list[Layer], str]:
    if isinstance(recipe, Mapping):
        given = _merge_foreign(OmegaConf.create({}), dict(recipe), "the given mapping")
        return split_layer(_as_dict(given), "the given mapping"), "custom"
    path = find_recipe(str(recipe))
    _warn(warn_shadowed_recipe(str(recipe)))
    return _read_with_bases(path, ()), path.stem


def _our_words(translation: Translation) -> DictConfig:
    translation.raise_problems()
    return cast(DictConfig, OmegaConf.create(translation.nested()))


def _split_overrides(
    overrides: Sequence[str] | Mapping[str, object], format_: ConfigFormat | None
) -> tuple[list[tuple[str, DictConfig]], list[tuple[str, DictConfig]]]:
    """Overrides with our keys, and those with another project's, which get their whole keys."""
    ours: list[tuple[str, DictConfig]] = []
    theirs: list[tuple[str, DictConfig]] = []
    for words, key, item in _override_items(overrides):
        meant = CONFIG_FORMATS.resolve_external_key(key, format_)
        if meant is None:
            ours.append((words, item))
        else:
            theirs.append((words, item if meant == key else _nest(meant, item[key])))
    return ours, theirs


def parse_params(words: Sequence[str]) -> RawSettings:
    """`size=5 view=grid` as keyword arguments, with YAML's idea of numbers and booleans."""
    merged = OmegaConf.create({})
    for word in words:
        merged = _merge(merged, _parse_override(word), f"'{word}'")
    return _resolve(merged)


def dump_settings(settings: TurnwiseSettings, pretrained: Sequence[Change] = ()) -> str:
    """The resolved settings as YAML; loading it gives the same settings. A comment names what `pretrained` changed.

    Secrets are written as references to environment variables.
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
    _warn(warn_shadowed_recipe(str(base_name), beside=path.parent))
    return [*_read_with_bases(find_base(str(base_name), of=path), (*seen, path.resolve())), *own]


def _warn(notice: str | None) -> None:
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
        return cast(DictConfig, OmegaConf.create(cast(RawSettings, nested)))
    except _MERGE_ERRORS as error:
        raise ConfigError(f"override '{key}': the value cannot be a setting: {one_line(error)}") from error


def _merge(base: DictConfig, new: DictConfig | RawSettings, source: str) -> DictConfig:
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


def _merge_foreign(base: DictConfig, new: DictConfig | RawSettings, source: str) -> DictConfig:
    """As `_merge`, for keys of which ours may be none: nothing is dropped where another choice is made."""
    try:
        return cast(DictConfig, OmegaConf.merge(base, new))
    except _MERGE_ERRORS as error:
        raise ConfigError(f"{source} does not fit the settings it changes: {one_line(error)}") from error


def _as_dict(config: object) -> RawSettings:
    return cast(RawSettings, OmegaConf.to_container(cast(DictConfig, config), resolve=False))


def _resolve(config: DictConfig) -> RawSettings:
    try:
        return cast(RawSettings, OmegaConf.to_container(config, resolve=True, throw_on_missing=True))
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"a reference cannot be resolved: {one_line(error)}") from error


def validate(raw: RawSettings) -> TurnwiseSettings:
    """Keys in, settings out, or one ConfigError."""
    settings_class = made_for(raw)
    try:
        return settings_class.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(describe_problems(error, settings_class, raw)) from error


def env_params(env: EnvSettings, split: str) -> RawSettings:
    """The chosen environment's own settings for a split: `env.train` applies to the training split alone."""
    own = env.model_dump(exclude={"type", "train"})
    return {**own, **env.train} if split == "train" else own


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSettings:
    """The valid part of a recipe's settings."""

    settings: TurnwiseSettings | None
    """None if nothing valid is left."""
    problems: tuple[str, ...]
    left_out: tuple[str, ...]
    """The config paths of the problems; do not report what follows from their absence."""


def load_partial_settings(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> PartialSettings:
    """Settings without the keys that are wrong, and the problems."""
    loader = _PartialLoader()
    try:
        raw = read_keys(recipe, overrides)
        loader.drop_unknown_choices(raw)
        settings = loader.validate(raw)
    except ConfigError as error:
        # A file that cannot be read at all, or a section that is none.
        settings, loader.problems = None, [*loader.problems, str(error)]
    return PartialSettings(settings=settings, problems=tuple(loader.problems), left_out=tuple(loader.left_out))


class _PartialLoader:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.left_out: list[str] = []

    def drop_unknown_choices(self, raw: RawSettings) -> None:
        """Drop the settings of a class that cannot be found: what its keys mean is unknown."""
        mixed = [f"mix.{tag}.env" for tag in _at(raw, "mix")]
        for path in [*(choice.path for choice in CHOICES), *mixed]:
            choice, section = choice_at(path), _at(raw, path)
            if choice is None or choice.key not in section or not choice.takes_params:
                continue
            try:
                params_class(choice, section[choice.key], path)
            except ConfigError as error:
                self._note(str(error), path.removesuffix(".env") if path in mixed else path)
                self._drop_choice(raw, choice, path)

    def _drop_choice(self, raw: RawSettings, choice: Choice, path: str) -> None:
        if path.startswith("mix."):
            del raw["mix"][path.split(".")[1]]
        elif choice.field.is_required():
            raise ConfigError(f"nothing more can be checked without {path}.{choice.key}.")
        else:
            section = _at(raw, path)
            for key in set(section) - (choice.base.model_fields.keys() - {choice.key}):
                del section[key]

    def validate(self, raw: RawSettings) -> TurnwiseSettings | None:
        """Validate until nothing is refused, each time without the refused keys."""
        while True:
            settings_class = made_for(raw)
            try:
                return settings_class.model_validate(raw)
            except ValidationError as error:
                found = [(dict(problem), written_keys(raw, problem["loc"])) for problem in error.errors()]
                for problem, keys in found:
                    self._note(describe_problem(problem, settings_class, raw), ".".join(keys))
                    if not keys:
                        return None
                    _drop(raw, keys)

    def _note(self, problem: str, path: str) -> None:
        self.problems.append(problem)
        self.left_out.append(path)


def _at(raw: RawSettings, path: str) -> RawSettings:
    """The section at a path; an empty one where there is none."""
    found = reduce(lambda section, key: section.get(key) if isinstance(section, dict) else None, path.split("."), raw)  # type: ignore[arg-type, return-value]
    return found if isinstance(found, dict) else {}


def _drop(raw: RawSettings, keys: list[str]) -> None:
    """Where two mistakes stand in one section, the first may have taken it away."""
    holder = _at(raw, ".".join(keys[:-1])) if keys[1:] else raw
    holder.pop(keys[-1], None)

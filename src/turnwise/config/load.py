"""Text in, frozen settings out: defaults <- recipe (`extends:`, `pretrained:`) <- overrides.

OmegaConf merges and resolves `${…}`; pydantic gives it meaning. Every mistake becomes one ConfigError that lists all
that is wrong, each with its config path. No OmegaConf object leaves this file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from turnwise.config.component import gives_no_rewards
from turnwise.config.formats import CONFIG_FORMATS, SHORTHANDS, ConfigFormat, Translation
from turnwise.config.kinds import Choice, EnvSettings, params_class
from turnwise.config.recipes import describe_namesake, find_base, find_composed, find_recipe, read_settings_file
from turnwise.config.schema import CHOICES, TinySettings, TurnwiseSettings, choice_at, made_for, without_switched
from turnwise.config.settings import describe_problem, describe_problems, one_line, shorten, written_keys
from turnwise.config.trust import DistrustError, hide_secrets
from turnwise.errors import ConfigError
from turnwise.infra.parsing import MAX_DEPTH, check_yaml_depth

_VLLM_HEAD_WIDTH = 32
"""The narrowest attention head that vLLM has a kernel for."""


def fill_in(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys with the choices that follow from others."""
    raw = _with_default(raw, ("credit", "type"), _credit_rule(raw))
    if _find(raw, "reward", "judge", "type") not in (None, "none"):
        raw = _with_default(raw, ("reward", "judge", "beside_env"), "leave" if needs_judge(raw) else "add")
    if _has_eval_files(raw):
        raw = _with_default(raw, ("eval", "episodes"), "all")
    if _find(raw, "cluster", "type") == "ray":
        # What runs elsewhere can be lost: what waits there must outlive it.
        raw = _with_default(raw, ("buffer", "type"), "sqlite")
    if _find(raw, "engine", "type") == "vllm":
        raw = _fit_vllm(raw)
    return raw


def _fit_vllm(raw: dict[str, Any]) -> dict[str, Any]:
    """Other kernels than the learner's sample, so what that changes is corrected; and heads are wide enough."""
    raw = _with_default(raw, ("learn", "correction", "type"), "truncated")
    width = _find(raw, "model", "tiny", "hidden_size") or TinySettings().hidden_size
    is_tiny = _find(raw, "model", "path") in (None, "tiny")
    if is_tiny and isinstance(width, int) and width % _VLLM_HEAD_WIDTH == 0:
        raw = _with_default(raw, ("model", "tiny", "num_heads"), width // _VLLM_HEAD_WIDTH)
    return raw


def _has_eval_files(raw: dict[str, Any]) -> bool:
    """Whether every environment of the run has a file for evaluation."""
    mixed = _find(raw, "mix")
    tags = mixed if isinstance(mixed, dict) else {}
    paths = [_find(raw, "env", "eval_path"), *(_find(tags, tag, "env", "eval_path") for tag in tags)]
    return all(path is not None for path in paths)


def _credit_rule(raw: dict[str, Any]) -> str:
    """One that asks the critic where there is one, else one that compares siblings where there are any."""
    if _find(raw, "learn", "critic", "type") not in (None, "none"):
        return "gae"
    return "reinforce_pp" if _find(raw, "rollout", "group_size") == 1 else "grpo"


def needs_judge(raw: dict[str, Any]) -> bool:
    """Whether an environment of the run gives no rewards."""
    mixed = _find(raw, "mix")
    tags = mixed if isinstance(mixed, dict) else {}
    names = [_find(raw, "env", "type"), *(_find(tags, tag, "env", "type") for tag in tags)]
    # What is no environment is refused by whoever reads it.
    with suppress(ConfigError, DistrustError):
        return any(isinstance(name, str) and gives_no_rewards(name) for name in names)
    return False


def _with_default(raw: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """The keys with a value where nothing was given."""
    key, *inner = path
    if not inner:
        return raw if key in raw else {**raw, key: value}
    section = raw.get(key, {})
    return {**raw, key: _with_default(section, tuple(inner), value)} if isinstance(section, dict) else raw


def _find(raw: dict[str, Any], *path: str) -> object:
    """What stands there; None where nothing does. What is no section is refused by whoever reads it."""
    found: object = raw
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def expand_shorthands(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys without shorthands."""
    given = {name: _checked(name, raw[name]) for name in SHORTHANDS if name in raw}
    expanded = {name: value for name, value in raw.items() if name not in SHORTHANDS}
    multi_turn = given.get("multi_turn")
    if multi_turn is False:
        expanded = _single_turn(expanded)
    elif multi_turn and not expanded.get("env"):
        raise ConfigError(
            "multi_turn: true given and no environment; many turns need one. Set env.type, for example "
            "env.type=frozen_lake, or multi_turn=false for the built-in prompts."
        )
    for name, path in {"use_reward_model": ("reward", "judge"), "use_reward_critic": ("learn", "critic")}.items():
        is_wanted = given.get(name)
        if is_wanted is None and multi_turn is not None and _find_shorthand(expanded, path) is None:
            is_wanted = not multi_turn and (name != "use_reward_model" or needs_judge(expanded))
        if is_wanted is not None:
            expanded = _with(expanded, path, _switched(_find_shorthand(expanded, path), is_wanted))
    return _with_built_in_judge(expanded) if multi_turn is False else expanded


def _single_turn(raw: dict[str, Any]) -> dict[str, Any]:
    """One turn, of the built-in prompts where nothing else is named."""
    raw = _with(raw, ("rollout", "max_turns"), 1)
    raw = raw if raw.get("env") else {**raw, "env": {"type": "prompts"}}
    if not _is_built_in(raw) or _find_shorthand(raw, ("context", "answer")) is not None:
        return raw
    return _with(raw, ("context", "answer"), {"type": "plain"})


def _with_built_in_judge(raw: dict[str, Any]) -> dict[str, Any]:
    """The built-in prompts have a built-in judge; what other texts are worth, a file must say."""
    judge = _find_shorthand(raw, ("reward", "judge"))
    is_unnamed = isinstance(judge, dict) and judge.get("type") == "model" and judge.get("path") is None
    return _with(raw, ("reward", "judge"), {**judge, "path": "tiny"}) if is_unnamed and _is_built_in(raw) else raw


def _is_built_in(raw: dict[str, Any]) -> bool:
    return _find_shorthand(raw, ("env", "type")) == "prompts" and _find_shorthand(raw, ("env", "path")) is None


def _checked(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {value!r} given; expected true or false.")
    return value


def _switched(choice: Any, is_wanted: bool) -> dict[str, Any]:
    """The choice that is there, if it already is what is wanted; else a model, or none."""
    current = choice if isinstance(choice, dict) else {}
    if not is_wanted:
        return {"type": "none"}
    return current if current.get("type", "none") != "none" else {**current, "type": "model"}


def _find_shorthand(raw: dict[str, Any], path: tuple[str, str]) -> Any:
    section = raw.get(path[0])
    return section.get(path[1]) if isinstance(section, dict) else None


def _with(raw: dict[str, Any], path: tuple[str, str], value: object) -> dict[str, Any]:
    section = raw.get(path[0]) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path[0]}: {section!r} given; expected a section of settings.")
    return {**raw, path[0]: {**section, path[1]: value}}


SECTION = "pretrained"
_TINY = "tiny"
_ENDPOINT = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Keys that one source gives, over those of the layers before it."""

    keys: Mapping[str, Any]
    source: str
    is_pretrained: bool = False
    """Whether they count only where `model.path` is not 'tiny', or an endpoint answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that a section changed."""

    path: str
    before: object
    """None where there was none."""
    after: object

    def __str__(self) -> str:
        return f"{self.path}: {_word(self.before)} -> {_word(self.after)}"


def split_layer(keys: Mapping[str, Any], source: str) -> list[Layer]:
    """The keys of a source, and after them its section, where it has one."""
    own = {key: value for key, value in keys.items() if key != SECTION}
    section = keys.get(SECTION)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{SECTION}: {section!r} given; expected a section of settings.")
    model = (section or {}).get("model")
    if isinstance(model, Mapping) and "path" in model:
        raise ConfigError(
            f"{SECTION}.model.path: {model['path']!r} given; the section applies where another model is chosen, so it "
            "cannot choose one. Set model.path beside it."
        )
    layers = [Layer(keys=own, source=source)]
    return [*layers, Layer(keys=section, source=f"{SECTION} of {source}", is_pretrained=True)] if section else layers


def give_way(layers: Sequence[Layer]) -> list[Layer]:
    """The layers, of which no section switches off what a later layer has settings for: those say that it is wanted."""
    return [
        replace(layer, keys=_without_idle(layer.keys, layers[number + 1 :])) if layer.is_pretrained else layer
        for number, layer in enumerate(layers)
    ]


def _without_idle(section: Mapping[str, Any], later: Sequence[Layer]) -> dict[str, Any]:
    def is_wanted(name: str) -> bool:
        said = [layer.keys.get(name) for layer in later if not layer.is_pretrained]
        return any(isinstance(keys, Mapping) and keys and "type" not in keys for keys in said)

    return {name: keys for name, keys in section.items() if keys != {"type": "none"} or not is_wanted(name)}


def applies_to(raw: Mapping[str, Any]) -> bool:
    """Whether who answers under these keys was trained before: another model than 'tiny', or one behind an endpoint."""
    model, engine = raw.get("model"), raw.get("engine")
    is_asked = isinstance(engine, Mapping) and engine.get("type") == _ENDPOINT
    return is_asked or (isinstance(model, Mapping) and model.get("path", _TINY) != _TINY)


def without_tiny(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys without the sizes of the built-in model, which is not made where a section applies."""
    model = raw.get("model")
    if not isinstance(model, Mapping):
        return raw
    return {**raw, "model": {key: value for key, value in model.items() if key != _TINY}}


def refuse_broken(raw: dict[str, Any], section: Mapping[str, Any]) -> None:
    """Raise what is wrong inside a section, and nothing of the rest; `raw` are all keys up to and with it."""
    try:
        settings_class = made_for(raw)
    except ConfigError as error:
        if _holds(section, str(error).partition(" ")[0].rstrip(":").split(".")):
            raise ConfigError(f"{SECTION}.{error}") from error
        return
    try:
        settings_class.model_validate(raw)
    except ValidationError as error:
        found = [dict(problem) for problem in error.errors() if _holds(section, written_keys(raw, problem["loc"]))]
        lines = [f"{SECTION}.{describe_problem(problem, settings_class, raw)}" for problem in found]
        if lines:
            several = ["the settings have several problems:", *lines]
            raise ConfigError("\n  ".join(several) if lines[1:] else lines[0]) from error


def find_changes(before: TurnwiseSettings, after: TurnwiseSettings) -> tuple[Change, ...]:
    """Every setting that differs, in the order of the pipeline; keys of a choice that is gone are left out."""
    old = dict(_flatten(before.model_dump(mode="json")))
    new = dict(_flatten(after.model_dump(mode="json")))
    return tuple(
        Change(path=path, before=old.get(path), after=value)
        for path, value in new.items()
        if not path.startswith(f"model.{_TINY}.") and (path not in old or old[path] != value)
    )


def describe_in_comment(changes: Sequence[Change]) -> str:
    """The line above the resolved settings; nothing where nothing was changed."""
    if not changes:
        return ""
    paths = ", ".join(change.path for change in changes)
    return f"# from the section '{SECTION}' of the recipe, because '{_TINY}' does not answer: {paths}\n"


def _holds(section: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether a section says something about a path."""
    inner: Any = section
    for key in path:
        if not isinstance(inner, Mapping) or key not in inner:
            return False
        inner = inner[key]
    return bool(path)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _word(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)


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
        _tell(
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
    _tell(describe_namesake(str(recipe)))
    return _read_with_bases(path, ()), path.stem


def _our_words(translation: Translation) -> DictConfig:
    translation.raise_problems()
    return cast(DictConfig, OmegaConf.create(translation.nested()))


def _split_overrides(
    overrides: Sequence[str] | Mapping[str, object], format_: ConfigFormat | None
) -> tuple[list[tuple[str, DictConfig]], list[tuple[str, DictConfig]]]:
    """Overrides in our words, and those in another project's; their keys made whole."""
    ours: list[tuple[str, DictConfig]] = []
    theirs: list[tuple[str, DictConfig]] = []
    for words, key, item in _override_items(overrides):
        meant = CONFIG_FORMATS.resolve_external_key(key, format_)
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
        raise ConfigError(describe_problems(error, settings_class, raw)) from error


def env_params(env: EnvSettings, split: str) -> dict[str, Any]:
    """The chosen environment's own settings for a split: `env.train` applies to the training split alone."""
    own = env.model_dump(exclude={"type", "train"})
    return {**own, **env.train} if split == "train" else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """Settings as far as they can be understood."""

    settings: TurnwiseSettings | None
    """None where nothing is left to look at."""
    problems: tuple[str, ...]
    left_out: tuple[str, ...]
    """The config paths that were wrong; what follows from their absence is no mistake of its own."""


def load_what_can_be(
    recipe: str | Path | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object] = ()
) -> Mended:
    """The settings without their mistakes, and the mistakes."""
    mending = _Mending()
    try:
        raw = read_keys(recipe, overrides)
        mending.drop_unknown_choices(raw)
        settings = mending.validate(raw)
    except ConfigError as error:
        # A file that cannot be read at all, or a section that is none.
        settings, mending.problems = None, [*mending.problems, str(error)]
    return Mended(settings=settings, problems=tuple(mending.problems), left_out=tuple(mending.left_out))


class _Mending:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.left_out: list[str] = []

    def drop_unknown_choices(self, raw: dict[str, Any]) -> None:
        """A class that cannot be found takes its section with it: nobody knows what its keys mean."""
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

    def _drop_choice(self, raw: dict[str, Any], choice: Choice, path: str) -> None:
        if path.startswith("mix."):
            del raw["mix"][path.split(".")[1]]
        elif choice.field.is_required():
            raise ConfigError(f"nothing more can be checked without {path}.{choice.key}.")
        else:
            section = _at(raw, path)
            for key in set(section) - (choice.base.model_fields.keys() - {choice.key}):
                del section[key]

    def validate(self, raw: dict[str, Any]) -> TurnwiseSettings | None:
        """Each round leaves out what pydantic refused; there are no more rounds than keys."""
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


def _at(raw: dict[str, Any], path: str) -> dict[str, Any]:
    """The section at a path; an empty one where there is none."""
    found = reduce(lambda section, key: section.get(key) if isinstance(section, dict) else None, path.split("."), raw)  # type: ignore[arg-type, return-value]
    return found if isinstance(found, dict) else {}


def _drop(raw: dict[str, Any], keys: list[str]) -> None:
    """Where two mistakes stand in one section, the first may have taken it away."""
    holder = _at(raw, ".".join(keys[:-1])) if keys[1:] else raw
    holder.pop(keys[-1], None)

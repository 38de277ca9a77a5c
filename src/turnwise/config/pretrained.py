"""The section `pretrained:` of a recipe: what fits a model that was trained before, where its own keys fit `tiny`.

In: the keys of files and overrides, layer by layer. Out: the layers that apply, what is wrong inside a section, and
what a section changed. It refuses to know how layers are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from turnwise.config.choices import made_for
from turnwise.config.problems import describe_problem, written_keys
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError

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
        lines = [f"{SECTION}.{describe_problem(problem, settings_class)}" for problem in found]
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

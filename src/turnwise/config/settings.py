"""The base of every settings class: strict, frozen, unknown keys refused."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from turnwise.config.schema import TurnwiseSettings

WholeSettings: TypeAlias = "TurnwiseSettings"
"""All settings of a run, for methods of a section that read other sections."""
RawSettings: TypeAlias = dict[str, Any]
"""Settings before validation, as a YAML file gives them."""


class Settings(BaseModel):
    """A frozen section of the configuration. Field docs are the strings under the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def idle_settings(self, path: str, run: WholeSettings) -> dict[str, str]:
        """Settings that were changed and do nothing in this combination, each with the rest of the sentence about it.

        `path` is where these settings stand, `run` are all of the run: `idle("window_turns", "with context.window
        'full'")` becomes the note `context.window_turns has no effect with context.window 'full'.`
        """
        return {}

    def idle(self, *names: str, why: str) -> dict[str, str]:
        """Those of them that were changed, for `idle_settings`."""
        return dict.fromkeys(self.changed(*names), f"has no effect {why}")

    def changed(self, *names: str) -> list[str]:
        """Those that differ from their defaults: a default that was written down was not chosen."""
        return [name for name in names if self._is_changed(name)]

    def _is_changed(self, name: str) -> bool:
        value, field = getattr(self, name), type(self).model_fields[name]
        if isinstance(value, Settings) and field.is_required():
            # A section in which a class is chosen is made for the choice, and has no default as a whole.
            return bool(value.changed(*type(value).model_fields))
        return value != field.get_default(call_default_factory=True)


_MAX_SHOWN = 200
"""Characters of a value or of another package's error that a message repeats."""


def one_line(error: BaseException) -> str:
    return shorten(" ".join(str(error).split()))


def shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} … ({len(text):,} characters)"


def describe_problems(error: ValidationError, root: type[BaseModel], raw: object = None) -> str:
    """One line per problem; `raw` is what was validated, which says what is chosen where a component is."""
    lines = [describe_problem(dict(problem), root, raw) for problem in error.errors()]
    return lines[0] if len(lines) == 1 else "the settings have several problems:\n  " + "\n  ".join(lines)


def describe_problem(problem: dict[str, Any], root: type[BaseModel], raw: object = None) -> str:
    """One of pydantic's findings."""
    location = [str(part) for part in problem["loc"]]
    keys, models = _follow(root, location[:-1], raw)
    path, kind, given = ".".join([*keys, *location[-1:]]), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = sorted({key for model in models for key in model.model_fields})
        return f"{path}: unknown setting. {did_you_mean(location[-1], known)}"
    if kind == "missing":
        return f"{path}: missing; it has no default."
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        choices = ", ".join(repr(tag) for model in _follow(root, location, raw)[1] for tag in _tags(model))
        if isinstance(given, dict) and "type" not in given:
            return f"{path}.type: missing beside {', '.join(map(repr, given))}; expected one of {choices}."
        value = given["type"] if isinstance(given, dict) else given
        return f"{path}.type: {value!r} given; expected one of {choices}."
    if kind == "component":
        return f"{path}: {problem['msg']}"
    message = str(problem["msg"]).rstrip(".")
    if kind == "value_error":
        # A class's own check speaks in whole sentences, often about several settings at once.
        return f"{path + ': ' if path else ''}{message.removeprefix('Value error, ')}."
    return f"{path}: {given!r} given; expected {message.removeprefix('Input should be ')}."


def _follow(root: type[BaseModel], location: list[str], raw: object) -> tuple[list[str], list[type[BaseModel]]]:
    """A location as the keys a user wrote, without the tags of choices, and the models that could stand there."""
    keys: list[str] = []
    models: list[type[BaseModel]] = [root]
    for part in location:
        tagged = [m for m in models if part in _tags(m)]
        if tagged:
            models = tagged
            continue
        keys.append(part)
        raw = raw.get(part) if isinstance(raw, Mapping) else None
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        models = [_chosen(inner, raw) for field in fields for inner in _models_in(field.annotation)]
    return keys, models


def _chosen(model: type[BaseModel], raw: object) -> type[BaseModel]:
    """The class that a section chooses where its field accepts every component of a kind."""
    registry = vars(model).get("registry")
    return model if registry is None else registry.class_of(raw)


def _tags(model: type[BaseModel]) -> list[str]:
    """The values of `type` a choice is selected by; pydantic names them in the location of an error."""
    field = model.model_fields.get("type")
    return [str(value) for value in getattr(field.annotation, "__args__", ())] if field else []


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


def written_keys(raw: Mapping[str, Any], location: Sequence[int | str]) -> list[str]:
    """The keys of a location that are written down: it also names the tags of choices, which are no keys."""
    inner: Any = raw
    keys: list[str] = []
    for part in map(str, location):
        if isinstance(inner, Mapping) and part in inner:
            keys.append(part)
            inner = inner[part]
    return keys


def require_package(module: str, *, extra: str, asked_by: str) -> ModuleType:
    """The module, or one sentence on how to get it; `extra` is the part of turnwise's install that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{asked_by} needs the package '{module}', which cannot be imported ({error}). "
            f"Install it with: pip install 'turnwise[{extra}]'"
        ) from error


def require_in_env_python(module: str, *, asked_by: str) -> ModuleType:
    """The same for packages whose requirements do not fit beside ours."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{asked_by} needs the package '{module.partition('.')[0]}', which cannot be imported here ({error}). It "
            "needs a Python of its own: run 'make envs-of-others' and set rollout.isolation.type=process and "
            "rollout.isolation.python=.venv-envs/bin/python."
        ) from error

"""Pydantic's findings in plain words: the config path, what was given, what was expected, the closest match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from turnwise.errors import did_you_mean

_MAX_SHOWN = 200
"""Characters of a value or of another package's error that a message repeats."""


def one_line(error: BaseException) -> str:
    return shorten(" ".join(str(error).split()))


def shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} … ({len(text):,} characters)"


def describe_problems(error: ValidationError, root: type[BaseModel]) -> str:
    """One line per problem."""
    lines = [describe_problem(dict(problem), root) for problem in error.errors()]
    return lines[0] if len(lines) == 1 else "the settings have several problems:\n  " + "\n  ".join(lines)


def describe_problem(problem: dict[str, Any], root: type[BaseModel]) -> str:
    """One of pydantic's findings."""
    location = [str(part) for part in problem["loc"]]
    keys, models = _follow(root, location[:-1])
    path, kind, given = ".".join([*keys, *location[-1:]]), problem["type"], problem["input"]
    if kind == "extra_forbidden":
        known = sorted({key for model in models for key in model.model_fields})
        return f"{path}: unknown setting. {did_you_mean(location[-1], known)}"
    if kind == "missing":
        return f"{path}: missing; it has no default."
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        choices = ", ".join(repr(tag) for model in _follow(root, location)[1] for tag in _tags(model))
        if isinstance(given, dict) and "type" not in given:
            return f"{path}.type: missing beside {', '.join(map(repr, given))}; expected one of {choices}."
        value = given["type"] if isinstance(given, dict) else given
        return f"{path}.type: {value!r} given; expected one of {choices}."
    message = str(problem["msg"]).rstrip(".")
    if kind == "value_error":
        # A class's own check speaks in whole sentences, often about several settings at once.
        return f"{path + ': ' if path else ''}{message.removeprefix('Value error, ')}."
    return f"{path}: {given!r} given; expected {message.removeprefix('Input should be ')}."


def _follow(root: type[BaseModel], location: list[str]) -> tuple[list[str], list[type[BaseModel]]]:
    """A location as the keys a user wrote, without the tags of choices, and the models that could stand there."""
    keys: list[str] = []
    models: list[type[BaseModel]] = [root]
    for part in location:
        tagged = [m for m in models if part in _tags(m)]
        if tagged:
            models = tagged
            continue
        keys.append(part)
        models = [
            inner for m in models if part in m.model_fields for inner in _models_in(m.model_fields[part].annotation)
        ]
    return keys, models


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

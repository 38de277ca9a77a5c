"""The table of a config format: one row per key of another project, read from `convert/NAME.yaml`.

A row says what a key becomes here (`to`, with `convert`, `compute` or `values`, or `consume` where several keys decide
together), why it is ignored (`ignore`), or why it is unsupported (`unsupported`). Functions that rows name are in this
module, in `NAME.py` beside the file, or named as `package.module:function`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from pydantic import Field, ValidationError

from turnwise.config.component import import_target
from turnwise.config.formats import FormatHeader, Kind, Native
from turnwise.config.settings import Settings, describe_problems
from turnwise.config.trust import require_trusted
from turnwise.errors import ConfigError
from turnwise.infra.parsing import parse_yaml

T = TypeVar("T")


class UnsupportedValue(Exception):  # noqa: N818 - a decision about a key, which becomes one line of a ConfigError
    """The value of a key cannot be followed; the text says why and what to do."""


class IgnoredValue(Exception):  # noqa: N818 - as above
    """The value of a key changes nothing here; the text says why."""


@contextmanager
def at_key(key: str) -> Iterator[None]:
    """Name the key in what is unsupported inside."""
    try:
        yield
    except UnsupportedValue as error:
        raise UnsupportedValue(f"{key}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A reference to something that is not in the file."""

    text: str


class SourceConfig:
    """The values of a file by dotted key, for rows that depend on more than their own value."""

    def __init__(self, values: Mapping[str, Any], *, is_partial: bool = False) -> None:
        self.values = values
        self.is_partial = is_partial
        """Only changes to settings that are there already, so that nothing follows from what is missing."""

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of these keys that has a value."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), default)

    def read(self, convert: Callable[[Any], T], *keys: str, default: Any = None) -> T:
        """The first of these keys that has a value, converted; what is unsupported names the key."""
        for key in keys:
            if self.values.get(key) is not None:
                with at_key(key):
                    return convert(self.values[key])
        return default

    def has(self, *sections: str) -> bool:
        """Whether a key of these sections is there."""
        return any(key == section or key.startswith(f"{section}.") for key in self.values for section in sections)

    def under(self, section: str) -> dict[str, Any]:
        """The values of a section, by the rest of the key."""
        start = f"{section}."
        return {key.removeprefix(start): value for key, value in self.values.items() if key.startswith(start)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A key as it stands in a file."""

    key: str
    value: Any
    source: SourceConfig


def one_of(names: Mapping[str, T], what: str) -> Callable[[Any], T]:
    """A converter of names."""

    def convert(value: Any) -> T:
        if isinstance(value, str) and value in names:
            return names[value]
        raise UnsupportedValue(f"expected {what}: one of {', '.join(names)}")

    return convert


def as_float(value: Any, what: str = "a number") -> float:
    """A number to compute with. Values that are only passed on are checked with our settings."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UnsupportedValue(f"expected {what}")
    return value


def as_int(value: Any, what: str = "a whole number") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnsupportedValue(f"expected {what}")
    return value


def as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnsupportedValue("expected true or false")
    return value


def as_list(value: Any) -> list[Any]:
    """A list, also of a single value."""
    return value if isinstance(value, list) else [value]


def drop_none(settings: Native) -> dict[str, object]:
    return {path: value for path, value in settings.items() if value is not None}


_STANDARD: dict[str, Callable[[Any], Any]] = {
    function.__name__: function for function in (as_float, as_int, as_bool, as_list)
}


class Row(Settings):
    """A row of the YAML file."""

    to: str = ""
    """The settings it becomes."""
    convert: str = ""
    """Function of the value that returns the value of `to`."""
    compute: str = ""
    """Function of a `KeyValue` that returns settings."""
    values: dict[str, Any] | list[str] = Field(default_factory=dict)
    """Value of `to` for each value of the key; a list where both are called alike."""
    expected: str = "a value"
    """What `values` are, for messages."""
    consume: str = ""
    """Settings that `finish` decides from this key and others."""
    ignore: str = ""
    """Why it changes nothing here."""
    when: list[Any] | None = None
    """The values that are ignored; all by default."""
    otherwise: str = ""
    """Why other values are unsupported."""
    unsupported: str = ""
    """Why it cannot be followed, and what to do."""
    note: str = ""

    @property
    def kind(self) -> Kind:
        """What becomes of the key for most values."""
        return "no meaning" if self.ignore else "refused" if self.unsupported else "mapped"

    def check(self) -> str | None:
        """What is wrong with the row."""
        given = [name for name in ("consume", "ignore", "unsupported") if getattr(self, name)]
        given += ["to"] if self.to or self.compute else []
        if len(given) != 1:
            return f"expected one of to, consume, ignore and unsupported; got {' and '.join(given) or 'none'}"
        if bool(self.convert) + bool(self.compute) + bool(self.values) > ("to" in given):
            return "expected at most one of convert, compute and values, beside to"
        return "when needs ignore and otherwise" if (self.when is not None) != bool(self.otherwise) else None


class FormatFile(FormatHeader):
    """A config format as its YAML file has it."""

    include: list[str] = Field(default_factory=list)
    """Formats whose rows its files may have as well, in the order in which similar keys are suggested."""
    functions: list[str] = Field(default_factory=list)
    """Python files beside this one, without their suffix, that have the functions of the rows; by default NAME.py."""
    finish: str = ""
    """Function of the `SourceConfig` and the settings of all rows that returns the settings of several keys."""
    reasons: dict[str, str] = Field(default_factory=dict)
    """Texts that several rows share."""
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Our settings if the file says nothing."""
    rows: dict[str, Row]
    """Keys are dotted; `*` stands for one part of any name, `**` at the end for everything below."""
    also_sets: list[str] = Field(default_factory=list)
    """Our settings that functions return and no row names."""
    no_counterpart: list[str] = Field(default_factory=list)
    """All our other settings, but those of environments: no key of this format decides them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMapping:
    """A row, with its functions."""

    key: str
    kind: Kind
    to: str
    note: str
    convert: Callable[[KeyValue], Native] | None
    """Returns the settings; None if `finish` decides."""

    def names(self) -> set[str]:
        """The settings in `to`, which is a text such as "context.window, window_turns"."""
        found: set[str] = set()
        section = ""
        for part in re.split(r", (?:or )?", self.to):
            path = part if "." in part or not section else f"{section}.{part}"
            section = path.rpartition(".")[0]
            # Of a section the kind is meant.
            found |= {path, f"{path}.type"}
        return found

    def matches(self, key: str) -> bool:
        """Whether a row with stars is about this key."""
        pattern, parts = self.key.split("."), key.split(".")
        if pattern[-1] == "**":
            pattern, parts = pattern[:-1], parts[: len(pattern) - 1]
        return len(parts) == len(pattern) and all(p in ("*", part) for p, part in zip(pattern, parts, strict=True))


FindFunction: TypeAlias = Callable[[str], Callable[..., Any]]


def build_mapping(key: str, row: Row, find_function: FindFunction) -> KeyMapping:
    note = row.ignore or row.unsupported or row.note
    convert: Callable[[KeyValue], Native] | None = None
    if row.unsupported:
        convert = _refuse(row.unsupported)
    elif row.when is not None:
        convert = _ignore_if(row.when, row.ignore, row.otherwise)
        note = f"{row.ignore}; refused unless {', '.join(map(str, row.when))}"
    elif row.compute:
        convert = find_function(row.compute)
    elif row.to:
        values = dict(zip(row.values, row.values, strict=True)) if isinstance(row.values, list) else row.values
        value_of = one_of(values, row.expected) if values else find_function(row.convert) if row.convert else None
        convert = _set(row.to, value_of)
    return KeyMapping(key=key, kind=row.kind, to=row.to or row.consume, note=note, convert=convert)


def _set(to: str, value_of: Callable[[Any], Any] | None) -> Callable[[KeyValue], Native]:
    return lambda given: {to: given.value if value_of is None else value_of(given.value)}


def _refuse(why: str) -> Callable[[KeyValue], Native]:
    def refuse(given: KeyValue) -> Native:
        raise UnsupportedValue(why)

    return refuse


def _ignore_if(neutral: list[Any], why: str, otherwise: str) -> Callable[[KeyValue], Native]:
    def judge(given: KeyValue) -> Native:
        # 1, 1.0 and True are equal in Python, and three things in a file.
        if any(given.value == value and isinstance(given.value, bool) == isinstance(value, bool) for value in neutral):
            raise IgnoredValue(why)
        raise UnsupportedValue(otherwise)

    return judge


@lru_cache(maxsize=64)
def read_file(path: Path, mtime: int) -> FormatFile:
    """A format's YAML file, validated; `mtime` makes a changed file another entry of the cache."""
    try:
        keys = parse_yaml(path.read_text(encoding="utf-8"), is_fast=True)
        file = FormatFile.model_validate({"name": path.stem, **keys})
    except ValidationError as error:
        raise ConfigError(f"config format '{path}': {describe_problems(error, FormatFile)}") from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"config format '{path}' cannot be read: {error}") from error
    problems = [f"rows.{key}: {problem}." for key, row in file.rows.items() if (problem := row.check())]
    if problems:
        raise ConfigError(f"config format '{path}': " + "\n  ".join(problems))
    return file


def build_mappings(path: Path, file: FormatFile) -> list[KeyMapping]:
    """The rows of a file, in order."""
    find_function = open_functions(path, file)
    return [build_mapping(key, row, find_function) for key, row in file.rows.items()]


def open_functions(path: Path, file: FormatFile) -> FindFunction:
    """Finds the functions that a file names."""
    sources = [path.with_name(f"{stem}.py") for stem in file.functions or [path.stem]]
    modules = [_import_file(source) for source in sources if source.is_file()]

    def find(name: str) -> Callable[..., Any]:
        found = _STANDARD.get(name) or next((vars(m)[name] for m in modules if name in vars(m)), None)
        if found is None and ":" in name:
            found = import_target(name, "converter")
        if not callable(found):
            raise ConfigError(f"config format '{path}': there is no function '{name}'.")
        return found

    return find


def _import_file(file: Path) -> ModuleType:
    if file.parent == Path(__file__).parent:
        return importlib.import_module(f"turnwise.convert.{file.stem}")
    require_trusted(str(file))
    spec = importlib.util.spec_from_file_location(f"turnwise_convert_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"'{file}' cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

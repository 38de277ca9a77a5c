"""Another project's settings in, settings of our own out, with one line about every key.

It refuses to guess: a key without a row is a mistake, and two keys that want different values of one setting are named
together. What a key means is said by the tables of the dialects alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from turnwise.config.dialects.table import (
    Dialect,
    ForeignFile,
    Given,
    Kind,
    Native,
    NoMeaning,
    Refusal,
    Unresolved,
)
from turnwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What has become of one key."""

    key: str
    value: Any
    kind: Kind
    to: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A file of another project as settings of our own."""

    dialect: str
    lines: tuple[Line, ...]
    settings: Native
    """By config path. Not complete where something was refused."""
    sources: Mapping[str, str]
    """Config paths to the keys they came from."""
    is_partial: bool = False
    """Whether it was made of single keys on the command line."""

    @property
    def problems(self) -> list[str]:
        return [
            f"{line.key}: {_short(line.value)} given; {line.note.rstrip('?.')}{'?' if line.note.endswith('?') else '.'}"
            for line in self.lines
            if line.kind == "refused"
        ]

    def nested(self) -> dict[str, Any]:
        """The settings as a file would hold them."""
        root: dict[str, Any] = {}
        for path, value in self.settings.items():
            *sections, last = path.split(".")
            inner = root
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = value
        return root

    def refuse_problems(self) -> None:
        """Raise a ConfigError that lists every key that cannot be followed."""
        if problems := self.problems:
            what = "these are words" if self.is_partial else "this is a file"
            head = f"{what} of {self.dialect}, and not all of it can be followed (see docs/coming_from.md):"
            raise ConfigError("\n  ".join([head, *problems]))

    def count(self, kind: Kind) -> int:
        return sum(line.kind == kind for line in self.lines)

    def name_sources(self, message: str) -> str:
        """A message about settings of our own, with the keys that the user wrote."""
        return "\n".join(self._name_source(line) for line in message.split("\n"))

    def _name_source(self, line: str) -> str:
        path, colon, rest = line.partition(":")
        source = self.sources.get(path.strip())
        return f"{path} (from {source}){colon}{rest}" if colon and source else line


def translate(dialect: Dialect, raw: Mapping[str, Any], *, is_partial: bool = False) -> Translation:
    """Every key of the file by its row, then what the file says as a whole."""
    file = ForeignFile(dict(_flatten(raw)), is_partial=is_partial)
    lines: list[Line] = []
    settings: dict[str, object] = {}
    sources: dict[str, str] = {}
    for key, value in file.values.items():
        line, made = _translate_key(dialect, file, key, value)
        if clash := _find_clash(settings, sources, made):
            line = Line(key=key, value=value, kind="refused", to=line.to, note=clash)
        lines.append(line)
        settings |= made
        # What several keys decide together is told by the settings that the row names.
        sources |= dict.fromkeys(made or [line.to], key)
    try:
        together = dialect.finish(file, settings)
    except Refusal as refusal:
        key, _, why = str(refusal).partition(": ")
        lines.append(Line(key=key, value=file.get(key), kind="refused", to="", note=why))
        together = {}
    return Translation(
        dialect=dialect.name,
        lines=tuple(lines),
        settings=_joined(settings, together),
        sources=sources,
        is_partial=is_partial,
    )


def _translate_key(dialect: Dialect, file: ForeignFile, key: str, value: Any) -> tuple[Line, Native]:
    found = dialect.find(key)
    if found is None and value is None and any(known.startswith(f"{key}.") for known in dialect.known_keys()):
        return Line(key=key, value=value, kind="no meaning", to="", note="an empty section"), {}
    if found is None:
        note = f"{dialect.name} has no such key{_closest(dialect, key)}"
        return Line(key=key, value=value, kind="refused", to="", note=note), {}
    row, names = found
    if isinstance(value, Unresolved):
        if row.kind == "no meaning":
            return Line(key=key, value=value.text, kind=row.kind, to=row.to, note=row.note), {}
        note = "the reference leads nowhere: what it names is not in the file"
        return Line(key=key, value=value.text, kind="refused", to=row.to, note=note), {}
    if value is None:
        return Line(key=key, value=value, kind="no meaning", to=row.to, note="null: nothing is asked for"), {}
    made: Native = {}
    kind, note = row.kind, row.note
    try:
        made = row.make(Given(key=key, value=value, names=names, file=file)) if row.make is not None else {}
    except Refusal as refusal:
        kind, note = "refused", str(refusal)
    except NoMeaning as reason:
        kind, note = "no meaning", str(reason)
    return Line(key=key, value=value, kind=kind, to=row.to, note=note), made


def _closest(dialect: Dialect, key: str) -> str:
    """The key that was probably meant: one that is like it, or the same name in another section."""
    name, known = key.rpartition(".")[2], list(dialect.known_keys())
    close = get_close_matches(key, known, n=1, cutoff=0.7)
    close = close or [other for other in known if other.rpartition(".")[2] == name]
    return f". Did you mean '{close[0]}'?" if close else "; see docs/coming_from.md for those it has"


def _find_clash(settings: Native, sources: Mapping[str, str], made: Native) -> str | None:
    for path, value in made.items():
        if path in settings and settings[path] != value:
            return f"{sources[path]} asks for another {path}: {_short(settings[path])}. Give one of them"
    return None


def _joined(settings: Native, together: Native) -> Native:
    """What the file says as a whole wins; None takes a setting away."""
    joined = {**settings, **together}
    return {path: value for path, value in joined.items() if value is not None}


def _flatten(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys; lists stay whole, and an empty section is a key without a value."""
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, None if value == {} else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

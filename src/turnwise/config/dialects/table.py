"""One row for every key of another project's files: what it becomes here, or why it becomes nothing.

In: nothing. Out: the types of the tables, and words to write rows with. A row is *mapped*, has *no meaning* here, or is
*refused*; it may be one for some values and another for others. No project is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["mapped", "no meaning", "refused"]
Native: TypeAlias = Mapping[str, object]
"""Settings of our own by their config path."""


class Refusal(Exception):  # noqa: N818 - a decision about a key, which becomes one line of a ConfigError
    """The value of a key cannot be followed; the text says why and what to do."""


class NoMeaning(Exception):  # noqa: N818 - as above
    """The value of a key changes nothing here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unresolved:
    """A reference to something that is not in the file."""

    text: str


class ForeignFile:
    """The values of a file under their dotted keys, for rows that have to look at more than their own."""

    def __init__(self, values: Mapping[str, Any], *, is_partial: bool = False) -> None:
        self.values = values
        self.is_partial = is_partial
        """Only changes to settings that are there already, so that nothing follows from what is missing."""

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of these keys that has a value."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), default)

    def has(self, *sections: str) -> bool:
        """Whether a key of these sections has a value."""
        return any(key == section or key.startswith(f"{section}.") for key in self.values for section in sections)

    def under(self, section: str) -> dict[str, Any]:
        """What stands in a section, by the rest of the key."""
        start = f"{section}."
        return {key.removeprefix(start): value for key, value in self.values.items() if key.startswith(start)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A key as it stands in a file."""

    key: str
    value: Any
    names: tuple[str, ...]
    """What stands for each `*` of the row's key."""
    file: ForeignFile


Make: TypeAlias = Callable[[Given], Native]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A key of another project."""

    key: str
    """Dotted. `*` stands for one part of any name, `**` at the end for everything below."""
    kind: Kind
    """What it is for most values."""
    to: str = ""
    """The settings it becomes, or decides about."""
    note: str = ""
    """The reason, or what is particular."""
    make: Make | None = None
    """The settings; None where the file as a whole decides."""

    def match(self, key: str) -> tuple[str, ...] | None:
        """What stands for the stars where the row is about this key."""
        pattern, parts = self.key.split("."), key.split(".")
        if pattern[-1] == "**":
            pattern, parts = pattern[:-1], parts[: len(pattern) - 1]
        if len(parts) != len(pattern) or any(p not in ("*", part) for p, part in zip(pattern, parts, strict=True)):
            return None
        return tuple(part for p, part in zip(pattern, parts, strict=True) if p == "*")


def same(key: str, to: str, note: str = "") -> Row:
    """The value is taken as it is."""
    return Row(key=key, kind="mapped", to=to, note=note, make=lambda given: {to: given.value})


def into(key: str, to: str, convert: Callable[[Any], Any], note: str = "") -> Row:
    """The value in our words; `convert` may raise Refusal or NoMeaning."""
    return Row(key=key, kind="mapped", to=to, note=note, make=lambda given: {to: convert(given.value)})


def made(key: str, to: str, make: Make, note: str = "") -> Row:
    """Settings that depend on more than the value."""
    return Row(key=key, kind="mapped", to=to, note=note, make=make)


def read(key: str, to: str, note: str = "") -> Row:
    """A key that decides together with others, in what the dialect says about the file as a whole."""
    return Row(key=key, kind="mapped", to=to, note=note)


def idle(key: str, why: str) -> Row:
    """Changes nothing here, whatever the value."""
    return Row(key=key, kind="no meaning", note=why)


def idle_if(key: str, neutral: tuple[object, ...], why: str, otherwise: str) -> Row:
    """Changes nothing as long as the value is one of these; refused otherwise."""

    def judge(given: Given) -> Native:
        # 1, 1.0 and True are one value to Python, and three to whoever writes them.
        if any(given.value == value and isinstance(given.value, bool) == isinstance(value, bool) for value in neutral):
            raise NoMeaning(why)
        raise Refusal(otherwise)

    shown = ", ".join(str(value) for value in neutral)
    return Row(key=key, kind="no meaning", note=f"{why}; refused unless {shown}", make=judge)


def refused(key: str, why: str) -> Row:
    """Cannot be followed, whatever the value."""

    def refuse(given: Given) -> Native:
        raise Refusal(why)

    return Row(key=key, kind="refused", note=why, make=refuse)


def choose(names: Mapping[str, object], what: str) -> Callable[[Any], Any]:
    """A converter of names; a name that is none of them is refused with the list."""

    def convert(value: Any) -> Any:
        if isinstance(value, str) and value in names:
            return names[value]
        raise Refusal(f"expected {what}: one of {', '.join(names)}")

    return convert


def number(value: Any, what: str = "a number") -> float:
    """A number to compute with; what only travels through is checked where it arrives."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise Refusal(f"expected {what}")
    return value


def whole(value: Any, what: str = "a whole number") -> int:
    """A whole number to compute with."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refusal(f"expected {what}")
    return value


def truth(value: Any) -> bool:
    """True or false, to decide by."""
    if not isinstance(value, bool):
        raise Refusal("expected true or false")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The files of one project."""

    name: str
    """As its users call it."""
    sections: tuple[str, ...]
    """Top-level keys by which its files are recognised."""
    rows: tuple[Row, ...]
    """Everything that may stand in its files, those of projects it builds upon included."""
    finish: Callable[[ForeignFile, Native], Native]
    """What the file as a whole says: rows of several keys at once, and what is meant where nothing stands."""
    own: tuple[Row, ...] = ()
    """Those of `rows` that are the project's own, for the page."""

    def find(self, key: str) -> tuple[Row, tuple[str, ...]] | None:
        """The row about a key; an exact one wins over one with stars."""
        found = [(row, names) for row in self.rows if (names := row.match(key)) is not None]
        return min(found, key=lambda pair: (pair[0].key.endswith("**"), len(pair[1])), default=None)

    def known_keys(self) -> Iterator[str]:
        return (row.key for row in self.rows)

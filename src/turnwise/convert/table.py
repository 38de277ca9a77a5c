"""One row for every key of another project's files: what it becomes here, or why it becomes nothing.

In: nothing. Out: the types of the tables, and words to write rows with. A row is *mapped*, has *no meaning* here, or is
*refused*; it may be one for some values and another for others. No project is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from turnwise.errors import ConfigError

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


ONE_MACHINE = "one process on one machine; devices are torch's own choice"
GPU_WORKERS = "arranges work on GPU workers; it changes speed, never the result"
ENGINE_OPTION = "an option of another inference engine"
TOKEN_BATCHES = "micro-batches are cut by tokens: learn.micro_batch_tokens"
REPORTS = "metrics.jsonl, TensorBoard and the console are always written"
ALWAYS_EVALUATED = "every run is evaluated before and after training"
WHOLE_DISTRIBUTION = "tokens are drawn from the whole distribution, which is what the learner scores"
SAMPLER_ONLY = "the learner would score other probabilities than tokens were drawn by; leave it out"
TEMPLATES = "the model's own chat template is read and proven when it is opened"
STRATEGY = "the learner runs in one process"
EXPERIMENT = "names an experiment for its dashboards"
REMOTE_CODE = "models are loaded by transformers without code from their folders"
JUDGE_FUNCTION = "write a function (prompt, response) -> number: reward.judge={type: function, target: module:function}"

"""Files and overrides of another project become our settings, row by row, and a report of what became of every key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.text import Text

from turnwise.config.formats import (
    CONFIG_FORMATS,
    SHIPPED_FORMATS,
    ConfigFormat,
    Kind,
    Native,
    TranslatedKey,
    Translation,
    short_repr,
)
from turnwise.config.recipes import SHIPPED
from turnwise.convert.environments import find_env
from turnwise.convert.table import (
    FormatFile,
    IgnoredValue,
    KeyMapping,
    KeyValue,
    SourceConfig,
    Unresolved,
    UnsupportedValue,
    build_mappings,
    drop_none,
    open_functions,
    read_file,
)


@lru_cache(maxsize=64)
def read_format(path: Path, mtime: int) -> TableFormat:
    """The config format of a YAML file; `mtime` makes a changed file another entry of the cache."""
    return TableFormat(path, read_file(path, mtime))


def load_formats() -> list[TableFormat]:
    """The formats that come with the library, for the documentation and tests."""
    return [read_format(path, path.stat().st_mtime_ns) for path in SHIPPED_FORMATS.headers()]


class TableFormat(ConfigFormat):
    """A config format made of a table."""

    def __init__(self, path: Path, file: FormatFile) -> None:
        self.name = file.name
        self.sections = file.sections
        self.file = file
        paths = [path.with_name(f"{stem}.yaml") for stem in file.include] or [path]
        parts = {part: read_file(part, part.stat().st_mtime_ns) for part in paths}
        rows = {part: build_mappings(part, parts[part]) for part in paths}
        self.own = rows[path]
        """The rows of its own file, for the documentation."""
        self.rows = [row for part in rows.values() for row in part]
        self.no_counterpart = {key for part in parts.values() for key in part.no_counterpart}
        self.decided = {key for part in parts.values() for key in part.also_sets}.union(
            *(row.names() for row in self.rows)
        )
        """Our settings that a file of this format can decide, and names of sections."""
        self._finish = open_functions(path, file)(file.finish) if file.finish else None
        self._exact = {row.key: row for row in self.rows if "*" not in row.key}
        self._patterns = [row for row in self.rows if "*" in row.key]

    def has_key(self, key: str) -> bool:
        return self.find(key) is not None

    def find_flag(self, flag: str) -> str | None:
        return next((row.key for row in self.own if "*" not in row.key and row.key.rpartition(".")[2] == flag), None)

    def find(self, key: str) -> KeyMapping | None:
        """The row about a key; an exact one before one with stars."""
        if key in self._exact:
            return self._exact[key]
        found = [row for row in self._patterns if row.matches(key)]
        return min(found, key=lambda row: (row.key.endswith("**"), row.key.split(".").count("*")), default=None)

    def convert(self, config: DictConfig, *, is_partial: bool = False) -> Translation:
        _register_resolvers()
        native = () if is_partial else {*self.pick_native_keys(config)}
        raw = {key: value for key, value in _resolve(config).items() if key not in native}
        return self.translate(raw, is_partial=is_partial)

    def translate(self, raw: Mapping[str, Any], *, is_partial: bool = False) -> Translation:
        """Every key by its row, then what several keys decide together."""
        source = SourceConfig(dict(_flatten(raw)), is_partial=is_partial)
        lines: list[TranslatedKey] = []
        settings: dict[str, object] = {}
        sources: dict[str, str] = {}
        for key, value in source.values.items():
            line, made = self._translate_key(source, key, value)
            if clash := _find_clash(settings, sources, made):
                line = TranslatedKey(key=key, value=value, kind="refused", to=line.to, note=clash)
            lines.append(line)
            settings |= made
            # Settings that several keys decide have the keys as sources whose rows name them.
            sources |= dict.fromkeys(made or [line.to], key)
        decided: Native = {}
        try:
            decided = {} if self._finish is None else self._finish(source, settings)
        except UnsupportedValue as error:
            key, _, why = str(error).partition(": ")
            lines.append(TranslatedKey(key=key, value=source.get(key), kind="refused", to="", note=why))
        defaults = {} if is_partial else self.file.defaults
        return Translation(
            format_name=self.name,
            lines=tuple(lines),
            # `finish` wins over rows; None removes a setting.
            settings=drop_none({**defaults, **settings, **decided}),
            sources=sources,
            is_partial=is_partial,
        )

    def _translate_key(self, source: SourceConfig, key: str, value: Any) -> tuple[TranslatedKey, Native]:
        row = self.find(key)
        made: Native = {}
        kind: Kind = "refused" if row is None else row.kind
        to, note = ("", "") if row is None else (row.to, row.note)
        if row is None and value is None and any(known.key.startswith(f"{key}.") for known in self.rows):
            kind, note = "no meaning", "an empty section"
        elif row is None:
            note = f"{self.name} has no such key{self._suggest(key)}"
        elif isinstance(value, Unresolved):
            value = value.text
            if kind != "no meaning":
                kind, note = "refused", "the reference leads nowhere: what it names is not in the file"
        elif value is None:
            kind, note = "no meaning", "null: nothing is asked for"
        elif row.convert is not None:
            try:
                made = row.convert(KeyValue(key=key, value=value, source=source))
            except UnsupportedValue as error:
                kind, note = "refused", str(error)
            except IgnoredValue as error:
                kind, note = "no meaning", str(error)
        return TranslatedKey(key=key, value=value, kind=kind, to=to, note=note), made

    def _suggest(self, key: str) -> str:
        """A key like it, or one with the same name in another section."""
        name, known = key.rpartition(".")[2], [row.key for row in self.rows]
        close = get_close_matches(key, known, n=1, cutoff=0.7)
        close = close or [other for other in known if other.rpartition(".")[2] == name]
        return f". Did you mean '{close[0]}'?" if close else "; see docs/coming_from.md for those it has"


def _find_clash(settings: Native, sources: Mapping[str, str], made: Native) -> str | None:
    for path, value in made.items():
        if path in settings and settings[path] != value:
            return f"{sources[path]} asks for another {path}: {short_repr(settings[path])}. Give one of them"
    return None


def _flatten(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys; lists stay whole, and an empty section is a key without a value."""
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{key}.")
        else:
            yield key, None if value == {} else value


def _resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values. A reference to something that is not there stays one: its key may be ignored anyway."""
    return {str(key): _resolve_value(config, key) for key in config}


def _resolve_value(parent: DictConfig, key: Any) -> Any:
    try:
        value = parent[key]
        if isinstance(value, DictConfig):
            return _resolve(value)
        return OmegaConf.to_container(value, resolve=True) if isinstance(value, ListConfig) else value
    except (OmegaConfBaseException, RecursionError, TypeError, ValueError, ZeroDivisionError):
        raw = cast("dict[Any, Any]", OmegaConf.to_container(parent, resolve=False))
        return Unresolved(text=str(raw.get(key)))


def _register_resolvers() -> None:
    """Those of RAGEN's files."""
    for name, compute in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_resolver(name, compute)


_RESOLVERS: Mapping[str, Any] = {
    "mul": lambda a, b: a * b,
    "int_div": lambda a, b: a // b,
    "not": lambda a: not a,
}


_STYLES = {"mapped": "green", "no meaning": "dim", "refused": "bold red"}
_HEADS = {"mapped": "mapped", "no meaning": "without meaning here", "refused": "refused"}


def describe_translation(translation: Translation) -> Text:
    """One line for every key of the file, by what became of it."""
    text = Text(f"a file of {translation.format_name}\n")
    for kind, style in _STYLES.items():
        lines = [line for line in translation.lines if line.kind == kind]
        if lines:
            text.append(f"{_HEADS[kind]} ({len(lines)})\n", style="bold")
        for line in lines:
            text.append(f"  {line.key}: {_short(line.value)}", style=style)
            text.append(f"  {_describe_result(line)}\n", style="dim" if kind != "refused" else "")
    return text


def _describe_result(line: TranslatedKey) -> str:
    if line.kind != "mapped":
        return line.note
    return f"-> {line.to}" + (f" ({line.note})" if line.note else "")


def to_translation_rows(translation: Translation) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {"key": line.key, "given": line.value, "kind": line.kind, "to": line.to, "note": line.note}
        for line in translation.lines
    ]


def to_recipe(translation: Translation, source: str) -> str:
    """The file with our keys, and with those alone that it sets."""
    ignored = [line for line in translation.lines if line.kind == "no meaning" and line.value is not None]
    head = [
        f"# Made from {source}, a file of {translation.format_name}.",
        *(f"# Left out: {line.key}: {line.note}." for line in ignored),
    ]
    body = yaml.safe_dump(translation.nested(), sort_keys=False, allow_unicode=True)
    return "\n".join([*head, body])


def default_recipe(overrides: Sequence[str]) -> str:
    """The recipe that flags alone change: that of the environment they name, or of their number of turns."""
    given = [(key, value) for key, _, value in (word.partition("=") for word in overrides)]
    keys = {CONFIG_FORMATS.resolve_external_key(key, None) or key: value for key, value in given}
    name = keys.get("env_cfgs.env_name") or keys.get("env.type")
    if name:
        return _recipe_of(name)
    is_single = keys.get("train_cfgs.multi_turn", keys.get("multi_turn", "")).lower() == "false"
    return "single_turn_ppo" if is_single else "frozenlake"


def _recipe_of(name: str) -> str:
    try:
        env = find_env(name)[0]
    except UnsupportedValue:
        # Loading the settings raises the same with its config path.
        return "frozenlake"
    recipe = env.replace("_", "")
    return recipe if (SHIPPED / f"{recipe}.yaml").is_file() else "frozenlake"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Config formats: which other project a config file was written for, and what became of its keys.

A format is a YAML file in `turnwise/convert`, or in the folder `convert` of the working directory. Nothing of
`turnwise.convert` is imported and no table is read while all keys are our own.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, ValidationError

from turnwise.config.derived_defaults import SHORTHANDS
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.settings import Settings, describe_problems
from turnwise.errors import ConfigError
from turnwise.infra.parsing import parse_yaml

Kind: TypeAlias = Literal["mapped", "no meaning", "refused"]
Native: TypeAlias = Mapping[str, object]
"""Our settings by config path."""
NATIVE_SECTIONS = frozenset({*TurnwiseSettings.model_fields, *SHORTHANDS, "extends", "pretrained"})
"""Top-level keys of our own files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedKey:
    """What became of one key."""

    key: str
    value: Any
    kind: Kind
    to: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A file of another project as our settings."""

    format_name: str
    lines: tuple[TranslatedKey, ...]
    settings: Native
    """Incomplete if a key was refused."""
    sources: Mapping[str, str]
    """Config paths to the keys they came from."""
    is_partial: bool = False
    """Whether it was made of single keys on the command line."""

    @property
    def problems(self) -> list[str]:
        return [
            f"{line.key}: {short_repr(line.value)} given; {line.note.rstrip('?.')}"
            f"{'?' if line.note.endswith('?') else '.'}"
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

    def raise_problems(self) -> None:
        """Raise a ConfigError that lists every refused key."""
        if problems := self.problems:
            what = "these are words" if self.is_partial else "this is a file"
            head = f"{what} of {self.format_name}, and not all of it can be followed (see docs/coming_from.md):"
            raise ConfigError("\n  ".join([head, *problems]))

    def count(self, kind: Kind) -> int:
        return sum(line.kind == kind for line in self.lines)

    def name_sources(self, message: str) -> str:
        """A message about our settings, with the keys that the user wrote."""
        return "\n".join(self._name_source(line) for line in message.split("\n"))

    def _name_source(self, line: str) -> str:
        path, colon, rest = line.partition(":")
        source = self.sources.get(path.strip())
        return f"{path} (from {source}){colon}{rest}" if colon and source else line


def short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class ConfigFormat(ABC):
    """The config files of another project."""

    name: str
    sections: frozenset[str]
    """Top-level keys that its files are recognized by."""

    @abstractmethod
    def has_key(self, key: str) -> bool:
        """Whether a file of the project can have this dotted key."""

    @abstractmethod
    def find_flag(self, flag: str) -> str | None:
        """The key that its command line takes by its last word."""

    @abstractmethod
    def convert(self, config: DictConfig, *, is_partial: bool = False) -> Translation:
        """Our settings for a file. If `is_partial`, for single keys that change settings which are there already."""

    def pick_native_keys(self, config: DictConfig) -> DictConfig:
        """Our own sections of a file; they may stand beside those of a project that has no such section."""
        keys = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=False))
        ours = {key: value for key, value in keys.items() if key in NATIVE_SECTIONS and key not in self.sections}
        return OmegaConf.create(ours)


class FormatHeader(Settings):
    """How a format's files are recognized: the keys of its YAML file that are read without the table."""

    name: str = ""
    """As its users call it; by default the name of the YAML file."""
    order: int = 100
    """Of several formats that a file fits equally well, the lowest wins."""
    detect: list[str]
    """Dotted keys that its files have."""
    detect_one_of: list[str] = Field(default_factory=list)
    """Top-level keys of which a file must have one, where `detect` also names keys of other projects."""
    has_flags: bool = False
    """Whether its command line takes keys by their last word."""

    @property
    def sections(self) -> frozenset[str]:
        return frozenset(key.partition(".")[0] for key in self.detect)

    def count_matches(self, raw: Mapping[str, Any]) -> int:
        if self.detect_one_of and not raw.keys() & self.detect_one_of:
            return 0
        # A long key is better evidence than a section that several projects have.
        return sum(key.count(".") + 1 for key in self.detect if _has_key(raw, key))


def _has_key(raw: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(raw, Mapping) or part not in raw:
            return False
        raw = raw[part]
    return True


class ConfigFormats:
    """Registry of the config formats: finds the one that a file is written in, and reads its table."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)

    def headers(self) -> dict[Path, FormatHeader]:
        paths = [path for folder in self._folders for path in sorted(folder.glob("*.yaml"))]
        found = {path: read_header(path.absolute(), path.stat().st_mtime_ns) for path in paths}
        return dict(
            sorted(
                ((path, header) for path, header in found.items() if header is not None),
                key=lambda item: (item[1].order, item[1].name),
            )
        )

    def detect(self, config: Mapping[Any, Any]) -> ConfigFormat | None:
        """The format with the most of its keys in the file; None if all sections are ours or unknown."""
        foreign = {str(key) for key in config} - NATIVE_SECTIONS
        if not foreign:
            return None
        raw = OmegaConf.to_container(config, resolve=False) if isinstance(config, DictConfig) else config
        named = {str(key): value for key, value in cast("Mapping[Any, Any]", raw).items()}
        headers = self.headers()
        if not any(foreign & header.sections for header in headers.values()):
            return None
        return read_format(max(headers, key=lambda path: headers[path].count_matches(named)))

    def guess_project(self, keys: Iterable[str]) -> str | None:
        """Which project a file with unknown top-level keys may be of; None if all of them are ours."""
        foreign = [str(key) for key in keys if key not in NATIVE_SECTIONS]
        if not foreign:
            return None
        headers = self.headers().values()
        scores = {
            header.name: sum(bool(get_close_matches(key, header.sections, cutoff=0.75)) for key in foreign)
            for header in headers
        }
        name = max(scores, key=lambda name: scores[name])
        if scores[name]:
            return f"It looks like a file of {name}; its sections are listed in docs/coming_from.md."
        return f"Files of {', '.join(scores)} are understood as they stand: docs/coming_from.md."

    def resolve_external_key(self, key: str, chosen: ConfigFormat | None) -> str | None:
        """The whole key that an override means in another project's words; None if it is one of ours.

        `chosen` is the format of the file that the override changes.
        """
        first = key.partition(".")[0]
        if chosen is not None and chosen.has_key(key):
            return key
        if first in NATIVE_SECTIONS:
            return None
        headers = self.headers()
        if any(first in header.sections for header in headers.values()):
            return key
        flags = (read_format(path).find_flag(key) for path, header in headers.items() if header.has_flags)
        return next((flag for flag in flags if flag is not None), None)

    def convert_overrides(self, config: DictConfig) -> Translation:
        """Single keys that change our settings: nothing follows from what they leave out."""
        sections = {str(key) for key in config}
        headers = self.headers().items()
        fitting = [path for path, header in headers if sections & header.sections]
        path = fitting[0] if fitting else next(path for path, header in headers if header.has_flags)
        return read_format(path).convert(config, is_partial=True)


@lru_cache(maxsize=64)
def read_header(path: Path, mtime: int) -> FormatHeader | None:
    """The part of a YAML file before its rows; None if the file is no config format."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"^detect:", text, re.MULTILINE):
        return None
    head = text.partition("\nrows:")[0]
    try:
        keys = parse_yaml(head if re.search(r"^detect:", head, re.MULTILINE) else text)
    except ValueError as error:
        raise ConfigError(f"config format '{path}' is not valid YAML: {error}") from error
    known = {key: value for key, value in keys.items() if key in FormatHeader.model_fields}
    try:
        return FormatHeader.model_validate({"name": path.stem, **known})
    except ValidationError as error:
        raise ConfigError(f"config format '{path}': {describe_problems(error, FormatHeader)}") from error


def read_format(path: Path) -> ConfigFormat:
    """The table behind a header."""
    return importlib.import_module("turnwise.convert.load").read_format(path.absolute(), path.stat().st_mtime_ns)


_SHIPPED = Path(str(files("turnwise") / "convert"))
SHIPPED_FORMATS = ConfigFormats([_SHIPPED])
CONFIG_FORMATS = ConfigFormats([_SHIPPED, Path("convert")])
"""With those of the folder where the user works."""

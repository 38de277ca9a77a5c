"""Read a settings file; say of other files what they look like, and where such a file belongs.

A file that holds no settings is refused with a ConfigError. What settings mean is not known here.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.dialects.known import OUR_SECTIONS, detect_dialect
from turnwise.config.problems import one_line
from turnwise.errors import ConfigError
from turnwise.infra.parsing import check_yaml_depth, parse_json, parse_yaml

_SETTINGS_SUFFIXES = (".yaml", ".yml", ".json")
_HEAD_BYTES = 64_000
_MAGIC = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzipped file",
    b"SQLite format 3": "an SQLite database",
    b"PK\x03\x04": "a ZIP file",
}
_PROMPTS = "Prompts are read with env.type=prompts env.path={path}."
_ROWS = "Rows of data belong into the setting of an environment that reads them, such as env.path={path}."


def read_settings_file(path: Path) -> DictConfig:
    try:
        check_yaml_depth(path.read_text(encoding="utf-8"))
        config = OmegaConf.load(path)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, OmegaConfBaseException) as error:
        if path.suffix not in _SETTINGS_SUFFIXES:
            raise ConfigError(describe_other_file(path)) from error
        raise ConfigError(f"'{path}' is not valid YAML: {one_line(error)}") from error
    except OSError as error:
        # OmegaConf says the same of a file that holds a number alone.
        reason = error.strerror
        raise ConfigError(f"'{path}' cannot be read: {reason}." if reason else describe_other_file(path)) from error
    if isinstance(config, ListConfig) and path.suffix in _SETTINGS_SUFFIXES:
        raise ConfigError(f"'{path}' must hold settings as 'key: value'; found a list.")
    if not isinstance(config, DictConfig) or _is_text(config, path):
        raise ConfigError(describe_other_file(path))
    return config


def _is_text(config: DictConfig, path: Path) -> bool:
    """OmegaConf takes plain text for a key without a value, and YAML takes 'Question: ...' for a setting."""
    if path.suffix in _SETTINGS_SUFFIXES:
        return len(config) == 1 and not _is_mapping(path.read_text(encoding="utf-8"))
    return not config.keys() & OUR_SECTIONS and detect_dialect(config) is None


def _is_mapping(text: str) -> bool:
    """OmegaConf's reader takes some text that YAML's own refuses."""
    try:
        return isinstance(parse_yaml(text), dict)
    except ValueError:
        return False


def describe_other_file(path: Path) -> str:
    """Why it cannot be a recipe: what it looks like, what was expected, and where it may belong."""
    look, advice = _look(path)
    expected = "expected a YAML file of settings, such as 'env: {type: frozen_lake}'"
    words = f"'{path}' is no settings file: it looks like {look}; {expected}."
    return f"{words} {advice.format(path=path)}" if advice else words


def _look(path: Path) -> tuple[str, str]:
    """What a file seems to be, and what could be done with it."""
    head = path.read_bytes()[:_HEAD_BYTES]
    for magic, look in _MAGIC.items():
        if head.startswith(magic):
            return look, _ROWS
    if b"\0" in head:
        return "a binary file", ""
    lines = [line for line in head.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        return "an empty file", ""
    if path.suffix == ".py":
        return "a Python file", "A class or function of yours is named as module:Name in a YAML file."
    if path.suffix in (".csv", ".tsv"):
        return f"a table ({path.suffix[1:].upper()})", "Save its rows as JSON lines to use them as data."
    if lines[0].lstrip().startswith("["):
        return "a JSON list", _ROWS
    if _is_object(lines[0]):
        return "JSON lines", _ROWS
    return f"plain text ({len(lines)} lines)" if lines[1:] else "plain text (one line)", _PROMPTS


def _is_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False

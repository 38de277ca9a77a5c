"""Find the file of a recipe by name or path, and read settings files.

A shipped name always means the shipped recipe; a file of the user's own with such a name is chosen by its path.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.formats import CONFIG_FORMATS, NATIVE_SECTIONS
from turnwise.config.settings import one_line
from turnwise.errors import ConfigError, did_you_mean
from turnwise.infra.parsing import check_yaml_depth, parse_json, parse_yaml
from turnwise.infra.untrusted import show

SHIPPED = Path(str(files("turnwise") / "recipes"))
OWN = Path("recipes")
"""In the folder where the user works."""
_CONFIG_FOLDERS = (OWN, Path("config"), Path("configs"), Path())
"""Where `--config-name` looks, as Hydra's users have them."""
_SUFFIXES = (".yaml", ".yml")
_MAX_NAME, _MAX_PATH = 240, 4000
"""Bytes of one name and characters of a whole path, with a suffix to spare: what file systems take."""


def list_recipes() -> list[str]:
    return sorted({file.stem for folder in (SHIPPED, OWN) for file in folder.glob("*.yaml")})


def find_recipe(name: str, *, beside: Path = OWN) -> Path:
    """The file behind a recipe's name or a path; `beside` is where files of the user's own are looked for by name."""
    if not name.strip():
        raise ConfigError(f"the recipe is an empty word; give a YAML file or one of: {', '.join(list_recipes())}.")
    check_name_length(name)
    path = Path(name)
    is_path = path.suffix in _SUFFIXES or len(path.parts) > 1
    for file in () if is_path else (SHIPPED / f"{name}.yaml", beside / f"{name}.yaml", OWN / f"{name}.yaml"):
        if file.is_file():
            return file
    if path.is_file():
        return path
    if is_path or path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"config file '{name}' {what}. Give a YAML file or one of: {', '.join(list_recipes())}.")
    raise ConfigError(f"there is no recipe named '{name}'. {did_you_mean(name, list_recipes())}")


def check_name_length(name: str) -> None:
    """What no file can be called: the system would raise about it, in words of its own."""
    if "\0" in name or len(name) > _MAX_PATH or max(map(len, name.encode("utf-8", "replace").split(b"/"))) > _MAX_NAME:
        raise ConfigError(
            f"{show(name)}, of {len(name):,} characters, is no name of a file or a recipe. Known recipes: "
            f"{', '.join(list_recipes())}."
        )


def find_named(name: str) -> Path:
    """The file behind `--config-name NAME`: a shipped recipe, or NAME.yaml where configs are usually kept."""
    check_name_length(name)
    stem = name.removesuffix(".yaml")
    for folder in () if (SHIPPED / f"{stem}.yaml").is_file() else _CONFIG_FOLDERS:
        if (file := folder / f"{stem}.yaml").is_file():
            return file
    return find_recipe(stem)


def find_base(name: str, *, of: Path) -> Path:
    """The file that `extends: NAME` in the file `of` means; a path is read from that file's folder."""
    check_name_length(name)
    file = of.parent / name
    return file if file.suffix in _SUFFIXES and file.is_file() else find_recipe(name, beside=of.parent)


def warn_shadowed_recipe(name: str, *, beside: Path = OWN) -> str | None:
    """What to say where a file of the user's own has the name of a shipped recipe; None where none has."""
    check_name_length(name)
    shipped, own = SHIPPED / f"{name}.yaml", beside / f"{name}.yaml"
    if not shipped.is_file() or not own.is_file() or own.samefile(shipped):
        return None
    return f"'{name}' is the shipped recipe {shipped}; {own} is another. Give its path to choose it: {own}"


def find_composed(config: DictConfig, folder: Path) -> list[Path]:
    """The files beside this one that its `defaults` names, as Hydra would compose them."""
    names = config.get("defaults")
    if not isinstance(names, ListConfig):
        return []
    files = [folder / f"{name}.yaml" for name in names if isinstance(name, str) and name != "_self_"]
    return [file for file in files if file.is_file()]


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
            raise ConfigError(describe_file_type(path)) from error
        raise ConfigError(f"'{path}' is not valid YAML: {one_line(error)}") from error
    except OSError as error:
        # OmegaConf says the same of a file that holds a number alone.
        reason = error.strerror
        raise ConfigError(f"'{path}' cannot be read: {reason}." if reason else describe_file_type(path)) from error
    if isinstance(config, ListConfig) and path.suffix in _SETTINGS_SUFFIXES:
        raise ConfigError(f"'{path}' must hold settings as 'key: value'; found a list.")
    if not isinstance(config, DictConfig) or _is_text(config, path):
        raise ConfigError(describe_file_type(path))
    return config


def _is_text(config: DictConfig, path: Path) -> bool:
    """OmegaConf takes plain text for a key without a value, and YAML takes 'Question: ...' for a setting."""
    if path.suffix in _SETTINGS_SUFFIXES:
        return len(config) == 1 and not _is_mapping(path.read_text(encoding="utf-8"))
    return not config.keys() & NATIVE_SECTIONS and CONFIG_FORMATS.detect(config) is None


def _is_mapping(text: str) -> bool:
    """OmegaConf's reader takes some text that YAML's own refuses."""
    try:
        return isinstance(parse_yaml(text), dict)
    except ValueError:
        return False


def describe_file_type(path: Path) -> str:
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

"""Which file a recipe's name means: a shipped one, or one beside the user.

In: a name or a path. Out: a file. A shipped name always means the shipped recipe; a file of the user's own that has
such a name is chosen by its path. It does not know what is in a recipe.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from turnwise.errors import ConfigError, did_you_mean
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
    refuse_endless_name(name)
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


def refuse_endless_name(name: str) -> None:
    """What no file can be called: the system would raise about it, in words of its own."""
    if "\0" in name or len(name) > _MAX_PATH or max(map(len, name.encode("utf-8", "replace").split(b"/"))) > _MAX_NAME:
        raise ConfigError(
            f"{show(name)}, of {len(name):,} characters, is no name of a file or a recipe. Known recipes: "
            f"{', '.join(list_recipes())}."
        )


def find_named(name: str) -> Path:
    """The file behind `--config-name NAME`: a shipped recipe, or NAME.yaml where configs are usually kept."""
    refuse_endless_name(name)
    stem = name.removesuffix(".yaml")
    for folder in () if (SHIPPED / f"{stem}.yaml").is_file() else _CONFIG_FOLDERS:
        if (file := folder / f"{stem}.yaml").is_file():
            return file
    return find_recipe(stem)


def find_base(name: str, *, of: Path) -> Path:
    """The file that `extends: NAME` in the file `of` means; a path is read from that file's folder."""
    refuse_endless_name(name)
    file = of.parent / name
    return file if file.suffix in _SUFFIXES and file.is_file() else find_recipe(name, beside=of.parent)


def describe_namesake(name: str, *, beside: Path = OWN) -> str | None:
    """What to say where a file of the user's own has the name of a shipped recipe; None where none has."""
    refuse_endless_name(name)
    shipped, own = SHIPPED / f"{name}.yaml", beside / f"{name}.yaml"
    if not shipped.is_file() or not own.is_file() or own.samefile(shipped):
        return None
    return f"'{name}' is the shipped recipe {shipped}; {own} is another. Give its path to choose it: {own}"

"""Files and overrides in another project's words, on their way into our settings.

In: a config as it was read, with its references. Out: a Translation, or the same overrides in our words. Files that
Hydra would compose (`defaults`) are read where they lie beside the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.dialects.align_anything import ROWS as ALIGN_ROWS
from turnwise.config.dialects.known import ALIGN_ANYTHING, DIALECTS, OUR_SECTIONS
from turnwise.config.dialects.table import Dialect, Unresolved
from turnwise.config.dialects.translate import Translation, translate

FLAGS = {row.key.rpartition(".")[2]: row.key for row in reversed(ALIGN_ROWS) if "*" not in row.key}
"""Keys of align-anything by their last word, as its command line takes them."""


def translate_config(dialect: Dialect, config: DictConfig) -> Translation:
    """A whole file."""
    _register_resolvers()
    ours = pick_ours(dialect, config)
    return translate(dialect, {key: value for key, value in _resolve(config).items() if key not in ours})


def pick_ours(dialect: Dialect, config: DictConfig) -> DictConfig:
    """The sections of a file that speak in our words: they may stand beside those of a project that has none such."""
    raw = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=False))
    ours = {key: value for key, value in raw.items() if key in OUR_SECTIONS and key not in dialect.sections}
    return cast(DictConfig, OmegaConf.create(ours))


def translate_overrides(config: DictConfig) -> Translation:
    """Single keys that change settings of our own: nothing follows from what they leave out."""
    raw = _resolve(config)
    dialect = next((d for d in DIALECTS if {*raw} & {*d.sections}), ALIGN_ANYTHING)
    return translate(dialect, raw, is_partial=True)


def foreign_key(key: str, dialect: Dialect | None) -> str | None:
    """The whole key that an override means in another project's words; None where it speaks in ours."""
    first = key.partition(".")[0]
    if dialect is not None and dialect.find(key):
        return key
    if first in OUR_SECTIONS:
        return None
    if any(first in other.sections for other in DIALECTS):
        return key
    return FLAGS.get(key)


def find_composed(config: DictConfig, folder: Path) -> list[Path]:
    """The files beside this one that its `defaults` names, in order."""
    names = config.get("defaults")
    if not isinstance(names, ListConfig):
        return []
    files = [folder / f"{name}.yaml" for name in names if isinstance(name, str) and name != "_self_"]
    return [file for file in files if file.is_file()]


def _resolve(config: DictConfig) -> dict[str, Any]:
    """Plain values. A reference that leads nowhere is kept as one: its key may have no meaning here anyway."""
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
    """RAGEN's own."""
    for name, compute in _RESOLVERS.items():
        if not OmegaConf.has_resolver(name):
            OmegaConf.register_resolver(name, compute)


_RESOLVERS: Mapping[str, Any] = {
    "mul": lambda a, b: a * b,
    "int_div": lambda a, b: a // b,
    "not": lambda a: not a,
}

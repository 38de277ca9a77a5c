"""Datasets of the package `datasets`: by their name on the hub, or saved in a folder.

In come a place, the name of a configuration and of a split; out come rows, as from a file. Whatever the package objects
to is one error with the setting to change. It refuses to run code that comes with a dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnwise.config.settings import require_package
from turnwise.envs.row_files import Row
from turnwise.errors import TaskError

HUB = "hf:"
_SAVED = ("dataset_dict.json", "dataset_info.json")
"""What `save_to_disk` leaves; any other folder holds files for `load_dataset`."""


def is_dataset(path: str) -> bool:
    """Whether the package reads it; all other paths are files, which need no package."""
    return path.startswith(HUB) or Path(path).expanduser().is_dir()


def read_dataset(path: str, *, subset: str | None, split: str, setting: str) -> Iterator[Row]:
    """All rows of a split in their order."""
    datasets: Any = require_package("datasets", extra="datasets", asked_by=f"{setting}: '{path}'")
    try:
        loaded = _load(datasets, path, subset, split)
    except Exception as error:  # the package and what it reads raise whatever they like
        raise TaskError(
            f"{setting}: '{path}' cannot be loaded with the split '{split}' and the subset {subset!r}: "
            f"{type(error).__name__}: {error}. Check the name, env.subset, env.train_split and env.eval_split."
        ) from error
    return (Row(f"{path}, split {split}, row {number}", content) for number, content in enumerate(loaded, start=1))


def _load(datasets: Any, path: str, subset: str | None, split: str) -> Any:
    if path.startswith(HUB):
        return datasets.load_dataset(path.removeprefix(HUB), subset, split=split)
    folder = Path(path).expanduser()
    if not any((folder / name).exists() for name in _SAVED):
        return datasets.load_dataset(str(folder), subset, split=split)
    loaded = datasets.load_from_disk(str(folder))
    return loaded[split] if isinstance(loaded, dict) else loaded

"""Checksums of all files of a folder, written into it: what is loaded later is what was saved, or the damage is told.

Refuses to know what the files mean.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from turnwise.errors import RunError
from turnwise.floor.files import encode_object, read_object

_NAME = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Of everything that is in the folder, the last thing to be written there."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != _NAME)
    found = {file.relative_to(folder).as_posix(): _checksum(file) for file in files}
    (folder / _NAME).write_text(encode_object(found), encoding="utf-8")


def find_damage(folder: Path, *, under: str = "") -> str | None:
    """What is missing or not as it was written, below `under` alone where it is given; None: nothing.

    A folder without checksums was written before there were any, and passes.
    """
    if not (folder / _NAME).exists():
        return None
    try:
        written = read_object(folder / _NAME)
    except RunError as error:
        return str(error)
    for name, checksum in written.items():
        if not name.startswith(under):
            continue
        try:
            if _checksum(folder / name) != checksum:
                return f"{name} is not as it was written: its checksum is another one"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def _checksum(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()

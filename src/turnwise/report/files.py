"""Content comes in and a complete file goes out: a reader sees the old file or the new one, never half of one.

Knows bytes and JSON. Refuses to know what a run is.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from turnwise.errors import RunError


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write to a temporary name in the same folder and rename; missing parent folders are made."""
    # The process id keeps two writers of one file from sharing a temporary name; the last rename wins.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            # Without this, a power cut after the rename can leave an empty file under the final name.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(
            f"Cannot write {path}: {reason(error)}. Check that its folder is writable and has space."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError(f"Cannot read {path}: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise RunError(f"Cannot read {path}: it is not UTF-8 text ({error.reason} at byte {error.start}).") from error


def read_object(path: Path) -> dict[str, object]:
    """The JSON object that a file holds."""
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise RunError(
            f"{path} is damaged: expected a JSON object ({error}). Restore it or start a new run."
        ) from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged: expected a JSON object, found {type(value).__name__}.")
    return value


def encode_object(value: object) -> str:
    """Indented JSON for people; refuses NaN and infinity, which are not JSON."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def reason(error: OSError) -> str:
    """The cause without the path, which the message around it already names."""
    return (error.strerror or str(error)).lower()

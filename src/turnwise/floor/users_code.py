"""An exception comes in; the line of the user's own code that raised it goes out, where there is one.

The user's are files that belong neither to this package nor to Python nor to an installed package.
"""

from __future__ import annotations

import site
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}: {self.text}"


def find_users_line(error: BaseException) -> Place | None:
    """The innermost line of the user's on the way to an error; None where none is on it."""
    users = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return _place(users[-1]) if users else None


def find_line(error: BaseException) -> Place | None:
    """The user's line; where none is on the way, the one that raised; None for an error that was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return find_users_line(error) or (_place(frames[-1]) if frames else None)


def _place(frame: traceback.FrameSummary) -> Place:
    return Place(file=frame.filename, line=frame.lineno or 0, function=frame.name, text=(frame.line or "").strip())


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    installed = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    elsewhere = [_PACKAGE, *map(Path, [*installed, *site.getsitepackages(), site.getusersitepackages()])]
    is_script = path.parent == Path(sysconfig.get_path("scripts")).resolve()
    return not is_script and not any(path.is_relative_to(folder.resolve()) for folder in elsewhere)

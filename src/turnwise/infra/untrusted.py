"""What strangers hand over, made safe to keep and to tell: texts, numbers, values, exceptions.

In: anything at all. Out: a text that can be encoded, a number that can be learnt from, words that can be printed. None
of these functions raises because of what it was given, except to say that a number is none.
"""

from __future__ import annotations

import math
import reprlib
import site
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat

import numpy as np

from turnwise.errors import RewardError
from turnwise.types import StopReason, Trajectory

MAX_REWARD = 1e18
"""Learning is done in float32, and advantages are divided by the root of a mean square: its square must still fit."""
_MAX_TOLD = 2000
"""Characters of an exception's own text that are kept: some put a whole document into it."""


def sanitize_text(text: str) -> str:
    """The same text, where half a surrogate pair stands as the replacement character: nothing can encode the half."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_json(value: object) -> object:
    """The same JSON value, all its texts and keys as `sanitize_text` has them."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, list):
        return [whole_json(item) for item in value]
    if isinstance(value, dict):
        return {whole_json(key): whole_json(item) for key, item in value.items()}
    return value


def show(value: object) -> str:
    """A short `repr`, also of what has none: an author's class may raise there, and so does an endless integer."""
    try:
        return sanitize_text(reprlib.repr(value))
    except Exception:  # noqa: BLE001 - the boundary: an author's `__repr__` may raise whatever it likes
        return f"a {type(value).__name__} that cannot be shown"


def format_error(error: BaseException) -> str:
    """`ValueError: what it says`, also where it cannot say it."""
    return f"{type(error).__name__}: {told_by(error)}"


def told_by(error: BaseException) -> str:
    """What an exception says, in words that can be written down."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the boundary: an author's `__str__` may raise whatever it likes
        return "an exception whose text cannot be read"
    return sanitize_text(words if len(words) <= _MAX_TOLD else f"{words[:_MAX_TOLD]} … ({len(words):,} characters)")


def parse_reward(given: object, whose: str) -> float:
    """A number that can be learnt from; RewardError, which begins with `whose`, for everything else."""
    if not isinstance(given, SupportsFloat):
        raise RewardError(f"{whose} {show(given)}; expected a finite number.")
    try:
        number = float(given)
    except OverflowError:  # a whole number may be larger than any float
        number = math.inf
    except Exception as error:
        raise RewardError(f"{whose} {show(given)}, which is no number ({format_error(error)}).") from error
    if not math.isfinite(number):
        raise RewardError(f"{whose} {show(given)}; expected a finite number.")
    if abs(number) > MAX_REWARD:
        raise RewardError(
            f"{whose} {show(given)}; expected a number between -{MAX_REWARD:g} and {MAX_REWARD:g}, because learning is "
            "done in float32. Scale the rewards down."
        )
    return number


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


def find_user_frame(error: BaseException) -> Place | None:
    """The innermost line of the user's on the way to an error; None where none is on it."""
    users = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    return _place(users[-1]) if users else None


def find_line(error: BaseException) -> Place | None:
    """The user's line; where none is on the way, the one that raised; None for an error that was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return find_user_frame(error) or (_place(frames[-1]) if frames else None)


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


UNKNOWN = "unknown"
"""Shown in place of an unknown success rate."""


def parse_success(given: object, whose: str) -> bool | None:
    """What somebody's code says about its goal; anything but a truth value, or None, would be guessed at."""
    if given is None:
        return None
    if not isinstance(given, bool | np.bool_):
        raise RewardError(f"{whose} {show(given)}; expected True, False, or None where nobody knows.")
    return bool(given)


def success_flags(played: Sequence[Trajectory]) -> list[bool | None]:
    """Whether each reached its goal; None: not reported.

    Where any of them says it, one that failed or was cut off before it could did not: a program that raises when its
    budget is spent would otherwise look better than it is.
    """
    said = [trajectory.is_success for trajectory in played]
    if all(one is None for one in said):
        return said
    return [_complete(one, trajectory) for one, trajectory in zip(said, played, strict=True)]


def success_rate(said: Iterable[bool | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [one for one in said if one is not None]
    return sum(known) / len(known) if known else None


def format_success_rate(share: float | None, form: str = ".0%") -> str:
    """`58%`, or unknown."""
    return UNKNOWN if share is None else format(share, form)


def _complete(said: bool | None, trajectory: Trajectory) -> bool | None:
    return False if said is None and trajectory.stop_reason is not StopReason.TERMINATED else said

"""What strangers hand over, made safe to keep and to tell: texts, numbers, values, exceptions.

In: anything at all. Out: a text that can be encoded, a number that can be learnt from, words that can be printed. None
of these functions raises because of what it was given, except to say that a number is none.
"""

from __future__ import annotations

import math
import reprlib
from typing import SupportsFloat

from turnwise.errors import RewardError

MAX_REWARD = 1e18
"""Learning is done in float32, and advantages are divided by the root of a mean square: its square must still fit."""
_MAX_TOLD = 2000
"""Characters of an exception's own text that are kept: some put a whole document into it."""


def whole_text(text: str) -> str:
    """The same text, where half a surrogate pair stands as the replacement character: nothing can encode the half."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_json(value: object) -> object:
    """The same JSON value, all its texts and keys as `whole_text` has them."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [whole_json(item) for item in value]
    if isinstance(value, dict):
        return {whole_json(key): whole_json(item) for key, item in value.items()}
    return value


def show(value: object) -> str:
    """A short `repr`, also of what has none: an author's class may raise there, and so does an endless integer."""
    try:
        return whole_text(reprlib.repr(value))
    except Exception:  # noqa: BLE001 - the boundary: an author's `__repr__` may raise whatever it likes
        return f"a {type(value).__name__} that cannot be shown"


def tell_error(error: BaseException) -> str:
    """`ValueError: what it says`, also where it cannot say it."""
    return f"{type(error).__name__}: {told_by(error)}"


def told_by(error: BaseException) -> str:
    """What an exception says, in words that can be written down."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - the boundary: an author's `__str__` may raise whatever it likes
        return "an exception whose text cannot be read"
    return whole_text(words if len(words) <= _MAX_TOLD else f"{words[:_MAX_TOLD]} … ({len(words):,} characters)")


def read_reward(given: object, whose: str) -> float:
    """A number that can be learnt from; RewardError, which begins with `whose`, for everything else."""
    if not isinstance(given, SupportsFloat):
        raise RewardError(f"{whose} {show(given)}; expected a finite number.")
    try:
        number = float(given)
    except OverflowError:  # a whole number may be larger than any float
        number = math.inf
    except Exception as error:
        raise RewardError(f"{whose} {show(given)}, which is no number ({tell_error(error)}).") from error
    if not math.isfinite(number):
        raise RewardError(f"{whose} {show(given)}; expected a finite number.")
    if abs(number) > MAX_REWARD:
        raise RewardError(
            f"{whose} {show(given)}; expected a number between -{MAX_REWARD:g} and {MAX_REWARD:g}, because learning is "
            "done in float32. Scale the rewards down."
        )
    return number

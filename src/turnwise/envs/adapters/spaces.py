"""Gymnasium's spaces as text: numbers and words for observations, words for actions.

In come a space of the package gymnasium and values of it; out come texts, and values for texts that name an action. It
refuses spaces whose values are no short text, such as pictures: then there is one clear error.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from turnwise.errors import ConfigError

MAX_NUMBERS = 64
"""Most numbers in one observation, and most actions that are listed by name."""


def check_observations(space: Any, spaces: ModuleType, label: str) -> None:
    """Refuse what cannot be told in a few words."""
    if isinstance(space, spaces.Tuple):
        parts = list(space.spaces)
    elif isinstance(space, spaces.Dict):
        parts = list(space.spaces.values())
    else:
        parts = []
    for part in parts:
        check_observations(part, spaces, label)
    if parts or isinstance(space, (spaces.Text, spaces.Discrete)):
        return
    is_grid = isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box))
    is_whole = is_grid and np.issubdtype(space.dtype, np.integer)
    if not is_whole or int(np.prod(space.shape)) > MAX_NUMBERS:
        raise ConfigError(
            f"environment '{label}': its observations are {space}, which is no text; expected Text, Discrete, or at "
            f"most {MAX_NUMBERS} whole numbers (MultiDiscrete, MultiBinary, Box), alone or in a Tuple or Dict."
        )


def describe_observation(value: Any) -> str:
    """Numbers with blanks between them, rows on lines of their own, the parts of a Dict with their names."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(f"{key}: {describe_observation(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return " ".join(describe_observation(part) for part in value)
    array = np.asarray(value)
    if array.ndim <= 1:
        return " ".join(str(number) for number in array.reshape(-1).tolist())
    return "\n".join(describe_observation(row) for row in array)


class Actions:
    """What may be answered, and what it means to the world."""

    def __init__(self, space: Any, spaces: ModuleType, names: Sequence[str], label: str) -> None:
        self._is_text = isinstance(space, spaces.Text)
        self._space = space
        values = [] if self._is_text else _list_values(space, spaces, label)
        if names and len(names) != len(values):
            raise ConfigError(
                f"environment '{label}': {len(names)} names are in env.action_words; expected {len(values)}, one for "
                "each action."
            )
        words = names or [describe_observation(value) for value in values]
        self._values = dict(zip(map(_fold, words), values, strict=True))
        if len(self._values) < len(values):
            raise ConfigError(f"environment '{label}': the names in env.action_words are not all different.")
        self.names = None if self._is_text else tuple(words)

    def parse(self, action: str) -> Any:
        """The value for a text; None where it names no action."""
        if self._is_text:
            return action if self._space.contains(action) else None
        return self._values.get(_fold(action))


def _fold(name: str) -> str:
    return " ".join(name.split()).casefold()


def _list_values(space: Any, spaces: ModuleType, label: str) -> list[Any]:
    if isinstance(space, spaces.Discrete) and space.n <= MAX_NUMBERS:
        return [int(space.start) + index for index in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and int(np.prod(space.nvec)) <= MAX_NUMBERS:
        starts = np.asarray(space.start)
        return [starts + np.array(each) for each in product(*(range(int(n)) for n in space.nvec))]
    raise ConfigError(
        f"environment '{label}': its actions are {space}; expected Text, or Discrete or MultiDiscrete with at most "
        f"{MAX_NUMBERS} actions."
    )

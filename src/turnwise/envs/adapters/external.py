"""Base class and shared functions of adapters for third-party environments: seeds per split, guarded global RNGs."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from turnwise.envs.base import BaseEnv, check_split
from turnwise.errors import ConfigError, TaskError
from turnwise.infra.process_state import GlobalRngGuard
from turnwise.infra.seeds import random_seed
from turnwise.infra.untrusted import format_error

SPLITS = ("train", "eval")
MAX_REPLY_LENGTH = 10_000
"""Longer replies are not passed on: some packages search them with patterns that take quadratic time."""

_HUGE_NUMBER = re.compile(r"\d{4000}")
"""Python raises for a number of more than 4,300 digits, and so do worlds that read one."""

Option = str | int | float | bool | None | list[str | int | float | bool | None]
"""What a keyword argument of a foreign constructor may be in a settings file."""


class ExternalEnv(BaseEnv):
    """The base of adapted worlds; subclasses wrap every call of foreign code in `self._rngs.inside()`."""

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._rngs = GlobalRngGuard(self.label())

    def limit_calls(self, limit_s: float) -> None:
        """Others who draw from the same generators do not wait longer for a call of this one."""
        self._rngs.max_turn_s = limit_s

    def _begin(self, seed: int | None, split: str, dynamics_seed: int | None) -> tuple[int, int]:
        """The seed of the layout and that of chance, both given or drawn."""
        check_split(split, SPLITS, self.label())
        seed = random_seed() if seed is None else seed
        if seed < 0:
            raise TaskError(f"{self.label()}: the seed {seed} was given; expected 0 or more.")
        self._rngs.seed(split_seed(seed, split))
        return seed, seed if dynamics_seed is None else dynamics_seed

    def _make(self, make: Callable[..., Any], **arguments: object) -> Any:
        """Build the foreign object; whatever it objects to is a matter of the settings."""
        with self._rngs.inside():
            try:
                return make(**arguments)
            except Exception as error:
                raise ConfigError(
                    f"env '{self.label()}' cannot be made with the options {self.params.options}: {format_error(error)}"
                ) from error


_Env = TypeVar("_Env", bound=BaseEnv)


def define_env(base: type[_Env], **members: object) -> type[_Env]:
    """Create the environment class of one id: a subclass of an adapter with these attributes."""
    return types.new_class(
        base.__name__, (base,), exec_body=lambda body: body.update(members, __module__=base.__module__)
    )


def split_seed(seed: int, split: str) -> int:
    """A seed for worlds that know no splits: train and eval never share one."""
    return 2 * seed + (split == "eval")


def is_valid_reply(action: str) -> bool:
    """Whether a reply is worth passing on; the others are invalid actions."""
    return bool(action.strip()) and len(action) <= MAX_REPLY_LENGTH and not _HUGE_NUMBER.search(action)


def reward_value(reward: object) -> float:
    """A reward as a number; one that is none counts nothing here and is refused by name at the boundary."""
    return float(reward) if isinstance(reward, (Real, np.bool_)) else 0.0


def make_info(*, success: bool, is_valid: bool, is_effective: bool) -> dict[str, object]:
    return {"success": success, "action_is_valid": is_valid, "action_is_effective": is_effective}


def require_env_id(rest: str, example: str) -> None:
    """The part behind the prefix says which world; without it there is none."""
    if not rest.strip():
        raise ConfigError(f"the environment '{example.partition(':')[0]}:' names nothing; expected e.g. '{example}'.")

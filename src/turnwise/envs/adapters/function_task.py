"""A plain function as an environment: `function:package.module:name`.

The function takes a seed and a split and returns a prompt and a function that scores a reply:

    def make_task(seed: int, split: str) -> tuple[str, Callable[[str], float]]: ...

In comes the place of the function; out comes an environment class. It refuses to know what is asked. The function's own
errors are not mended here: the boundary turns them into data on the trajectory.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, cast

from turnwise.config.component import import_target
from turnwise.config.settings import Settings
from turnwise.envs.adapters.foreign import require_rest
from turnwise.envs.adapters.one_turn import OneTurnTask, OneTurnWorld
from turnwise.errors import ConfigError, EnvError

_EXPECTED = "expected a function that takes (seed, split) and returns (prompt, grade), with grade(reply) -> number."


class FunctionParams(Settings):
    """The settings of a function task."""

    success_above: float = 0.0
    """An episode whose score is above this counts as a success."""


class FunctionWorld(OneTurnWorld):
    """A prompt from a function, scored by a function."""

    Params: ClassVar[type[Settings]] = FunctionParams
    make_task: ClassVar[Callable[[int, str], object]]

    params: FunctionParams

    def _make_task(self, seed: int, split: str) -> OneTurnTask:
        made = type(self).make_task(seed, split)
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], str) and callable(made[1])):
            raise EnvError(f"{self.label()} returned {reprlib.repr(made)}; {_EXPECTED}")
        return OneTurnTask(*made)


@lru_cache
def adapt_function(target: str) -> type[FunctionWorld]:
    """The environment class of `package.module:name`."""
    require_rest(target, "function:package.module:name")
    function = import_target(target, "environment function")
    if not callable(function):
        raise ConfigError(f"environment 'function:{target}' is {function!r}; {_EXPECTED}")
    try:
        inspect.signature(function).bind(0, "train")
    except TypeError as error:
        raise ConfigError(f"environment 'function:{target}' cannot be called so ({error}); {_EXPECTED}") from error
    members = {"name": f"function:{target}", "make_task": staticmethod(function), "__module__": __name__}
    return cast("type[FunctionWorld]", type("FunctionWorld", (FunctionWorld,), members))

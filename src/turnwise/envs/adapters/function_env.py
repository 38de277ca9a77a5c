"""A plain function as an environment: `function:package.module:name`.

The function takes a seed and a split and returns a prompt and a function that scores a reply:

    def make_task(seed: int, split: str) -> tuple[str, Callable[[str], float]]: ...

In comes the place of the function; out comes an environment class. It refuses to know what is asked. The function's own
errors are not mended here: the boundary turns them into data on the trajectory.
"""

from __future__ import annotations

import inspect
import reprlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, cast

from turnwise.config.component import import_target
from turnwise.config.settings import Settings
from turnwise.envs.adapters.external import (
    ExternalEnv,
    define_env,
    is_valid_reply,
    make_info,
    require_env_id,
    reward_value,
)
from turnwise.errors import ConfigError, EnvError
from turnwise.infra.process_state import States


@dataclass(frozen=True, slots=True)
class SingleTurnTask:
    """What is asked, how a reply is scored, and a right reply where one is known."""

    prompt: str
    grade: Callable[[str], Any]
    answer: str | None = None


class SingleTurnEnv(ExternalEnv):
    """Subclasses say how a task is made."""

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._task = SingleTurnTask("", lambda reply: 0.0)

    @abstractmethod
    def _make_task(self, seed: int, split: str) -> SingleTurnTask:
        """The task of a seed; called inside the generators of this environment."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, luck = self._begin(seed, split, dynamics_seed)
        with self._rngs.inside():
            self._task = self._make_task(seed, split)
        self._rngs.seed(luck)
        self._phase = "playing"
        return self._task.prompt

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        if not is_valid_reply(action):
            return self._refuse()
        with self._rngs.inside():
            score = self._task.grade(action)
        self._phase = "over"
        success = reward_value(score) > self.params.success_above
        return "", score, True, make_info(success=success, is_valid=True, is_effective=True)

    def render(self) -> str:
        return self._task.prompt

    @property
    def instructions(self) -> str:
        return "Answer the question."

    def oracle(self) -> str:
        self._require_playing()
        return self._task.answer or super().oracle()

    def snapshot(self) -> object:
        return self._task, self._phase, self._rngs.states

    def restore(self, state: object) -> None:
        self._task, self._phase, self._rngs.states = cast("tuple[SingleTurnTask, Any, States]", state)

    def _refuse(self) -> tuple[str, float, bool, dict[str, object]]:
        return self._task.prompt, 0.0, False, make_info(success=False, is_valid=False, is_effective=False)


_EXPECTED = "expected a function that takes (seed, split) and returns (prompt, grade), with grade(reply) -> number."


class FunctionParams(Settings):
    """The settings of a function task."""

    success_above: float = 0.0
    """An episode whose score is above this counts as a success."""


class FunctionEnv(SingleTurnEnv):
    """A prompt from a function, scored by a function."""

    Params: ClassVar[type[Settings]] = FunctionParams
    make_task: ClassVar[Callable[[int, str], object]]

    params: FunctionParams

    def _make_task(self, seed: int, split: str) -> SingleTurnTask:
        made = type(self).make_task(seed, split)
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], str) and callable(made[1])):
            raise EnvError(f"{self.label()} returned {reprlib.repr(made)}; {_EXPECTED}")
        return SingleTurnTask(*made)


@lru_cache
def adapt_function(target: str) -> type[FunctionEnv]:
    """The environment class of `package.module:name`."""
    require_env_id(target, "function:package.module:name")
    function = import_target(target, "environment function")
    if not callable(function):
        raise ConfigError(f"environment 'function:{target}' is {function!r}; {_EXPECTED}")
    try:
        inspect.signature(function).bind(0, "train")
    except TypeError as error:
        raise ConfigError(f"environment 'function:{target}' cannot be called so ({error}); {_EXPECTED}") from error
    return define_env(FunctionEnv, name=f"function:{target}", make_task=staticmethod(function))

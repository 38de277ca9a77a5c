"""The border to an author's environment: whatever it answers or raises becomes a `StepResult` or a typed error.

In come an environment and the arguments of one call; out comes checked, normalised data. It refuses to know who plays
and what the numbers mean. Only here is any exception caught, because an author's code may raise whatever it likes and
the other episodes must go on.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from turnwise.errors import EnvError, RewardError, TaskError
from turnwise.exchange import EnvDescription
from turnwise.types import Info, Metrics, StepResult

if TYPE_CHECKING:
    from turnwise.envs.base import BaseEnv
    from turnwise.protocols import Env


_RAISED = (Exception, SystemExit)
"""What an author's code may raise; one that calls `sys.exit` ends its episode, not the run."""


def reset_env(
    env: BaseEnv | Env, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None
) -> str:
    """The first text of an episode; Gymnasium's pair of text and info is understood as well."""
    try:
        answer = env.reset(seed, split=split, dynamics_seed=dynamics_seed)
    except TaskError:
        # The task itself cannot be made: no fault of the author's code, and it names the settings to change.
        raise
    except _RAISED as error:
        raise _failure(env, f"reset(seed={seed}, split={split!r})", error) from error
    if isinstance(answer, tuple) and len(answer) == 2:
        answer = answer[0]
    return _checked_text(answer, env, "reset")


def step_env(env: BaseEnv | Env, action: str) -> StepResult:
    """One step, from four values (observation, reward, done, info) or Gymnasium's five."""
    try:
        answer: object = env.step(action)
    except _RAISED as error:
        raise _failure(env, f"step({reprlib.repr(action)})", error) from error
    if not isinstance(answer, tuple) or len(answer) not in (4, 5):
        size = f" of {len(answer)}" if isinstance(answer, tuple) else ""
        raise EnvError(
            f"{_name(env)}.step returned a {type(answer).__name__}{size}; expected (observation, reward, done, info) "
            "or (observation, reward, terminated, truncated, info)."
        )
    info = _checked_info(answer[-1], env)
    if len(answer) == 5:
        terminated, truncated = _checked_flag(answer[2], env), _checked_flag(answer[3], env)
    else:
        done = _checked_flag(answer[2], env)
        truncated = done and _said_flag(info, "truncated", env, default=False)
        terminated = done and not truncated
    return StepResult(
        text=_checked_text(answer[0], env, "step"),
        reward=_checked_reward(answer[1], env),
        terminated=terminated,
        truncated=truncated,
        is_valid=_said_flag(info, "action_is_valid", env, default=True),
        is_effective=_said_flag(info, "action_is_effective", env, default=True),
        is_success=_said_flag(info, "success", env, default=False) if "success" in info else None,
        metrics=_numbers_in(info),
        info=info,
    )


def describe_env(env: BaseEnv) -> EnvDescription:
    """What an environment says about itself after a reset."""
    try:
        return EnvDescription(
            instructions=env.instructions, legend=env.legend, action_names=env.action_names, example=env.example
        )
    except _RAISED as error:
        raise _failure(env, "instructions, legend or action_names", error) from error


def count_tasks(env: BaseEnv, split: str) -> int | None:
    """How many tasks a split has; None where there is no end of them."""
    try:
        count: object = env.num_tasks(split)
    except TaskError:
        raise
    except _RAISED as error:
        raise _failure(env, f"num_tasks({split!r})", error) from error
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise EnvError(f"{_name(env)}.num_tasks returned {reprlib.repr(count)}; expected a number above 0, or None.")
    return count


def call_env(env: BaseEnv, method: str, *args: object) -> object:
    """Any other method of an author's: `oracle`, `snapshot`, `restore`."""
    try:
        return getattr(env, method)(*args)
    except _RAISED as error:
        raise _failure(env, f"{method}()", error) from error


def _checked_text(text: object, env: object, method: str) -> str:
    if not isinstance(text, str):
        raise EnvError(f"{_name(env)}.{method} returned a {type(text).__name__} as observation; expected text (str).")
    return text


def _checked_reward(reward: object, env: object) -> float:
    if not isinstance(reward, (Real, np.bool_)):
        raise RewardError(f"{_name(env)}.step returned the reward {reprlib.repr(reward)}; expected a real number.")
    try:
        number = float(reward)
    except OverflowError:  # a whole number may be larger than any float
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(f"{_name(env)}.step returned the reward {reprlib.repr(reward)}; expected a finite number.")
    return number


def _checked_flag(flag: object, env: object) -> bool:
    if not isinstance(flag, (bool, np.bool_)):
        raise EnvError(f"{_name(env)}.step returned {reprlib.repr(flag)} where True or False says whether it is over.")
    return bool(flag)


def _checked_info(info: object, env: object) -> Info:
    if not isinstance(info, Mapping):
        raise EnvError(f"{_name(env)}.step returned a {type(info).__name__} as info; expected a mapping.")
    return info


def _said_flag(info: Info, key: str, env: object, *, default: bool) -> bool:
    """What an environment says under a name that the house acts on: anything but a truth value would be guessed at."""
    flag = info.get(key, default)
    if not isinstance(flag, (bool, np.bool_)):
        raise EnvError(f"{_name(env)}.step returned info[{key!r}] = {reprlib.repr(flag)}; expected True or False.")
    return bool(flag)


def _numbers_in(info: Info) -> Metrics:
    """The finite numbers that an environment reports, from `info` itself and from `info["metrics"]`."""
    own = info.get("metrics")
    told = {**info, **own} if isinstance(own, Mapping) else info
    return {
        str(name): float(value)
        for name, value in told.items()
        if isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and _is_finite(value)
    }


def _is_finite(value: float | np.generic) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False


def _name(env: object) -> str:
    return type(env).__name__


def _failure(env: object, call: str, error: BaseException) -> EnvError:
    return EnvError(f"{_name(env)}.{call} failed: {type(error).__name__}: {error}")

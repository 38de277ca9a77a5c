"""Calls of environments with checked results: answers become a `StepResult`, errors become typed exceptions.

Every exception is caught here, `CancelledError` and `SystemExit` included, because third-party code may raise any and
other episodes must continue. Only `KeyboardInterrupt` passes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from turnwise.errors import EnvError, TaskError, TurnwiseError
from turnwise.infra.untrusted import format_error, parse_reward, sanitize_text, show
from turnwise.rollout_io import EnvDescription
from turnwise.types import Info, Metrics, StepResult

if TYPE_CHECKING:
    from turnwise.envs.base import BaseEnv
    from turnwise.protocols import Env


log = logging.getLogger(__name__)
_MAX_TEXT = 4_000_000
"""Characters of an observation. No context holds so much, and every turn of a rollout is kept until it is learnt."""


def reset_env(
    env: BaseEnv | Env, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None
) -> str:
    """The first text of an episode; Gymnasium's pair of text and info is understood as well."""
    try:
        answer = env.reset(seed, split=split, dynamics_seed=dynamics_seed)
    except (TaskError, KeyboardInterrupt):
        # The task itself cannot be made: no fault of the author's code, and it names the settings to change.
        raise
    except BaseException as error:
        raise _failure(env, f"reset(seed={seed}, split={split!r})", error) from error
    if isinstance(answer, tuple) and len(answer) == 2:
        answer = answer[0]
    return _checked_text(answer, env, "reset")


def step_env(env: BaseEnv | Env, action: str) -> StepResult:
    """One step, from four values (observation, reward, done, info) or Gymnasium's five."""
    try:
        answer: object = env.step(action)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failure(env, f"step({show(action)})", error) from error
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
        reward=parse_reward(answer[1], f"{_name(env)}.step returned the reward"),
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
        texts = {name: sanitize_text(getattr(env, name)) for name in ("instructions", "legend", "example")}
        names = env.action_names
        return EnvDescription(**texts, action_names=None if names is None else tuple(map(sanitize_text, names)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failure(env, "instructions, legend, example or action_names", error) from error


def count_tasks(env: BaseEnv, split: str) -> int | None:
    """How many tasks a split has; None where there is no end of them."""
    try:
        count: object = env.num_tasks(split)
    except (TaskError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failure(env, f"num_tasks({split!r})", error) from error
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise EnvError(f"{_name(env)}.num_tasks returned {show(count)}; expected a number above 0, or None.")
    return count


def call_env(env: BaseEnv, method: str, *args: object) -> object:
    """Any other method of an author's: `oracle`, `snapshot`, `restore`."""
    try:
        return getattr(env, method)(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failure(env, f"{method}()", error) from error


def close_env(env: BaseEnv) -> None:
    """Let go of it; a `close` that fails is a warning, because its episodes are over."""
    try:
        env.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
        log.warning("%s.close() failed: %s", _name(env), format_error(error))


@contextmanager
def closing_env(env: BaseEnv) -> Iterator[BaseEnv]:
    """Close it at the end, as `close_env` does."""
    try:
        yield env
    finally:
        close_env(env)


def call_policy(env: BaseEnv, rule: Callable[[BaseEnv, str], str], observation: str) -> str:
    """What a simple rule of an author's, or the oracle, would do now."""
    try:
        action: object = rule(env, observation)
    except (TurnwiseError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failure(env, "oracle() or a rule of it", error) from error
    if not isinstance(action, str):
        raise EnvError(f"a rule of {_name(env)} chose {show(action)}; expected an action (str).")
    return sanitize_text(action)


def _checked_text(text: object, env: object, method: str) -> str:
    if not isinstance(text, str):
        raise EnvError(f"{_name(env)}.{method} returned a {type(text).__name__} as observation; expected text (str).")
    if len(text) > _MAX_TEXT:
        raise EnvError(
            f"{_name(env)}.{method} returned an observation of {len(text):,} characters; expected at most "
            f"{_MAX_TEXT:,}."
        )
    return sanitize_text(text)


def _checked_flag(flag: object, env: object) -> bool:
    if not isinstance(flag, (bool, np.bool_)):
        raise EnvError(f"{_name(env)}.step returned {show(flag)} where True or False says whether it is over.")
    return bool(flag)


def _checked_info(info: object, env: object) -> Info:
    if not isinstance(info, Mapping):
        raise EnvError(f"{_name(env)}.step returned a {type(info).__name__} as info; expected a mapping.")
    return info


def _said_flag(info: Info, key: str, env: object, *, default: bool) -> bool:
    """What an environment says under a name that the house acts on: anything but a truth value would be guessed at."""
    flag = info.get(key, default)
    if not isinstance(flag, (bool, np.bool_)):
        raise EnvError(f"{_name(env)}.step returned info[{key!r}] = {show(flag)}; expected True or False.")
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
    return EnvError(f"{_name(env)}.{call} failed: {format_error(error)}")

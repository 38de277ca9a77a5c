"""Environments by name.

In come a registered name or `package.module:Class` and settings; out comes an environment. It refuses to know any
environment itself: nothing is imported before it is chosen.
"""

from __future__ import annotations

import inspect

from turnwise.config.component import ENVS
from turnwise.envs.base import BaseEnv
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.infra.untrusted import tell_error


def make_env(name: str, **params: object) -> BaseEnv:
    """`make_env("frozen_lake", size=4)`, or your own class as `make_env("my_package.my_env:MyEnv")`."""
    target, params = ENVS.get_target(name), {**ENVS.unalias(name).params, **params}
    if not callable(target) or (isinstance(target, type) and not issubclass(target, BaseEnv)):
        raise ConfigError(_expected_env(name, target))
    if isinstance(target, type) and inspect.isabstract(target):
        missing = " and ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise ConfigError(f"environment '{name}' has no {missing}; a class that extends BaseEnv writes reset and step.")
    try:
        env = target(**params)
    except TurnwiseError:
        raise
    except Exception as error:  # an author's constructor may raise whatever it likes
        given = ", ".join(params) or "no settings"
        raise ConfigError(f"environment '{name}' cannot be made with {given}: {tell_error(error)}") from error
    if not isinstance(env, BaseEnv):
        raise ConfigError(_expected_env(name, env))
    return env


def _expected_env(name: str, given: object) -> str:
    return f"environment '{name}' is {given!r}; expected a class that extends turnwise.envs.base.BaseEnv."

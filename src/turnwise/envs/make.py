"""Environments by name.

In come a registered name or `package.module:Class` and settings; out comes an environment. It refuses to know any
environment itself: nothing is imported before it is chosen.
"""

from __future__ import annotations

from turnwise.config.registry import ENVS
from turnwise.envs.base import BaseEnv
from turnwise.errors import ConfigError


def make_env(name: str, **params: object) -> BaseEnv:
    """`make_env("frozen_lake", size=4)`, or your own class as `make_env("my_package.my_env:MyEnv")`."""
    target = ENVS.get_target(name)
    if not callable(target) or (isinstance(target, type) and not issubclass(target, BaseEnv)):
        raise ConfigError(_expected_env(name, target))
    env = target(**params)
    if not isinstance(env, BaseEnv):
        raise ConfigError(_expected_env(name, env))
    return env


def _expected_env(name: str, given: object) -> str:
    return f"environment '{name}' is {given!r}; expected a class that extends turnwise.envs.base.BaseEnv."

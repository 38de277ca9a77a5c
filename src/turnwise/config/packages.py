"""Packages that only some choices need: imported when they are chosen, explained when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from turnwise.errors import ConfigError


def require_package(module: str, *, extra: str, asked_by: str) -> ModuleType:
    """The module, or one sentence on how to get it; `extra` is the part of turnwise's install that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{asked_by} needs the package '{module}', which cannot be imported ({error}). "
            f"Install it with: pip install 'turnwise[{extra}]'"
        ) from error


def require_elsewhere(module: str, *, asked_by: str) -> ModuleType:
    """The same for packages whose requirements do not fit beside ours."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{asked_by} needs the package '{module.partition('.')[0]}', which cannot be imported here ({error}). It "
            "needs a Python of its own: run 'make envs-of-others' and set rollout.isolation.type=process and "
            "rollout.isolation.python=.venv-envs/bin/python."
        ) from error

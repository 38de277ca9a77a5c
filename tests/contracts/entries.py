"""What the contracts are held to: every name of every registry, and the plug-ins of users.

Plug-ins are found in modules: those of `TURNWISE_PLUG_INS` (names with commas between), or `examples/plug_ins.py`. What
a class is for is seen from what it has, by the table that also checks settings (`config/kinds.py`).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from turnwise.config.component import Component, Registry
from turnwise.config.kinds import Choice
from turnwise.config.schema import CHOICES
from turnwise.envs.base import BaseEnv
from turnwise.rollout.workflow import Workflow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_NUM_ARGUMENTS = {"credit": 2, "buffer.priority": 3, "learn.loss": 4}
"""Of `__call__`: what tells apart the classes whose objects are called."""
_BASES: dict[str, type] = {"env": BaseEnv, "rollout": Workflow}


def choice_at(path: str) -> Choice:
    return next(choice for choice in CHOICES if choice.path == path)


def names_of(path: str) -> list[str]:
    """All that a section can choose: `names_of("engine")` is `["local", …, "plug_ins:OneByOneEngine"]`."""
    choice = choice_at(path)
    found = [f"{module.__name__}:{name}" for module in plug_in_modules() for name in _names_in(module, choice)]
    return [*choice.registry, *found]


def plug_ins() -> dict[str, list[str]]:
    """The plug-ins of every section that has some, by its path."""
    found = {choice.path: [name for name in names_of(choice.path) if name not in choice.registry] for choice in CHOICES}
    return {path: names for path, names in found.items() if names}


@cache
def plug_in_modules() -> tuple[ModuleType, ...]:
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    given = os.environ.get("TURNWISE_PLUG_INS") or "plug_ins"
    return tuple(importlib.import_module(name.strip()) for name in given.split(","))


def _names_in(module: ModuleType, choice: Choice) -> Iterator[str]:
    for name, member in vars(module).items():
        is_own = getattr(member, "__module__", None) == module.__name__ and not name.startswith("_")
        if is_own and _is_for(member, choice):
            yield name


def _is_for(member: object, choice: Choice) -> bool:
    if isinstance(choice.registry, Registry):
        is_new = isinstance(member, type) and issubclass(member, choice.registry.base)
        return is_new or _is_class_for(member, choice, choice.registry.old_form)
    return _is_class_for(member, choice, choice.methods) if choice.methods else _is_loop(member)


def _is_class_for(member: object, choice: Choice, methods: tuple[str, ...]) -> bool:
    if not isinstance(member, type) or inspect.isabstract(member) or issubclass(member, Component):
        return False
    if choice.path in _BASES:
        return issubclass(member, _BASES[choice.path])
    if not all(hasattr(member, method) for method in methods):
        return False
    if methods[-1] != "__call__":
        return True
    # Looked for in the classes themselves: every class can be called, its objects only where it says so.
    call = next((vars(cls)["__call__"] for cls in member.__mro__ if "__call__" in vars(cls)), None)
    return call is not None and len(inspect.signature(call).parameters) - 1 == _NUM_ARGUMENTS[choice.path]


def _is_loop(member: object) -> bool:
    return (
        inspect.iscoroutinefunction(member) and {"start_step", "on_step"} <= inspect.signature(member).parameters.keys()
    )

"""Import paths of earlier versions that were documented: they work for one release, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES: Mapping[str, str] = {
    "turnwise.floor": "turnwise.infra",
    "turnwise.floor.seeds": "turnwise.infra.seeds",
    "turnwise.floor.successes": "turnwise.infra.untrusted",
    "turnwise.sites": "turnwise.deps",
    "turnwise.exchange": "turnwise.rollout_io",
    "turnwise.conversation": "turnwise.chat_types",
    "turnwise.pretrained": "turnwise.models.load",
    "turnwise.context.transcript": "turnwise.context.recorder",
    "turnwise.context.window": "turnwise.context.answer",
    "turnwise.credit.samples": "turnwise.credit.layout",
    "turnwise.envs.boundary": "turnwise.envs.safe_calls",
    "turnwise.learn.scaling": "turnwise.models.gpus",
    "turnwise.learn.tiny_model": "turnwise.models.tiny",
    "turnwise.rollout.environment": "turnwise.rollout.workflow",
}
NAMES: Mapping[str, str] = {
    "fingerprint": "hash64",
    "show_history": "build_messages",
    "show_success": "format_success_rate",
}


class _MovedModuleLoader(Loader):
    """Makes a module that looks its names up in the one that replaces it."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        target, old = self._target, module.__name__
        warnings.warn(f"{old} has moved. Import {target} instead.", DeprecationWarning, stacklevel=2)

        def find(name: str) -> object:
            return getattr(importlib.import_module(target), NAMES.get(name, name))

        vars(module).update(__getattr__=find, __path__=[])


def find_moved(name: str) -> ModuleSpec | None:
    """Return the spec of a module under its old path, or None if it never existed."""
    target = MODULES.get(name)
    return ModuleSpec(name, _MovedModuleLoader(target), is_package=True) if target else None

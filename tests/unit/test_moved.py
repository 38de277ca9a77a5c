"""Documented imports of earlier versions still work, and say where the module is now."""

from __future__ import annotations

import importlib
import sys

import pytest

from turnwise.moved import MODULES

DOCUMENTED = [
    ("turnwise.floor.seeds", "make_rng", "turnwise.infra.seeds", "make_rng"),
    ("turnwise.floor.seeds", "fingerprint", "turnwise.infra.seeds", "hash64"),
    ("turnwise.floor.successes", "show_success", "turnwise.infra.untrusted", "format_success_rate"),
    ("turnwise.sites", "EngineSite", "turnwise.deps", "EngineSite"),
    ("turnwise.pretrained", "load_model", "turnwise.models.load", "load_model"),
    ("turnwise.context.transcript", "Transcript", "turnwise.context.recorder", "Transcript"),
    ("turnwise.context.window", "show_history", "turnwise.context.answer", "build_messages"),
    ("turnwise.credit.samples", "make_samples", "turnwise.credit.layout", "make_samples"),
    ("turnwise.envs.boundary", "step_env", "turnwise.envs.safe_calls", "step_env"),
    ("turnwise.learn.scaling", "plan_gpus", "turnwise.models.gpus", "plan_gpus"),
    ("turnwise.learn.tiny_model", "tiny_model_folder", "turnwise.models.tiny", "tiny_model_folder"),
    ("turnwise.rollout.environment", "EnvironmentWorkflow", "turnwise.rollout.workflow", "EnvironmentWorkflow"),
]
RENAMED = [
    ("turnwise.protocols", "Imitation", "SFTConfig"),
    ("turnwise.protocols", "PolicyMark", "PolicyVersion"),
    ("turnwise.context.template", "LearnedTemplate", "HFChatTemplate"),
]


@pytest.mark.parametrize(("old", "name", "new", "new_name"), DOCUMENTED)
def test_a_documented_import_works_and_names_the_new_path(old: str, name: str, new: str, new_name: str) -> None:
    for module in [module for module in sys.modules if module in MODULES]:
        del sys.modules[module]
    with pytest.warns(DeprecationWarning, match=f"{old} has moved. Import {new} instead"):
        found = getattr(importlib.import_module(old), name)
    assert found is getattr(importlib.import_module(new), new_name)


@pytest.mark.parametrize(("module", "old", "new"), RENAMED)
def test_a_renamed_class_has_its_old_name_too(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    assert getattr(found, old) is getattr(found, new)


def test_every_new_path_exists_and_no_old_one_does() -> None:
    for new in MODULES.values():
        importlib.import_module(new)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("turnwise.floor.nothing")

"""turnwise trains language-model agents over many turns with reinforcement learning.

Importing it is light: names load on first use, and torch only when something needs it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwise.config.component import WORKFLOWS
    from turnwise.context.manager import ContextManager
    from turnwise.envs.base import BaseEnv, make_env
    from turnwise.envs.check import check_env
    from turnwise.hooks import Callback
    from turnwise.rollout.agent_proxy import AgentProxy
    from turnwise.rollout.agents import BaseAgent, SyncMultiTurnRollout
    from turnwise.rollout.env_manager import EnvStateManager
    from turnwise.rollout.step_wise import RewardPropagationWorkflow, StepWiseRewardWorkflow
    from turnwise.rollout.workflow import Workflow, WorkflowTask
    from turnwise.run.api import Run, evaluate, open_run, resume, train
    from turnwise.run.trainers import AgentTrainer, PPOTrainer
    from turnwise.types import Experience

__version__ = "0.1.0"

_HOMES = {
    "WORKFLOWS": "turnwise.config.component",
    "ContextManager": "turnwise.context.manager",
    "BaseEnv": "turnwise.envs.base",
    "check_env": "turnwise.envs.check",
    "make_env": "turnwise.envs.base",
    "Callback": "turnwise.hooks",
    "AgentTrainer": "turnwise.run.trainers",
    "PPOTrainer": "turnwise.run.trainers",
    "Run": "turnwise.run.api",
    "evaluate": "turnwise.run.api",
    "open_run": "turnwise.run.api",
    "resume": "turnwise.run.api",
    "train": "turnwise.run.api",
    "AgentProxy": "turnwise.rollout.agent_proxy",
    "BaseAgent": "turnwise.rollout.agents",
    "SyncMultiTurnRollout": "turnwise.rollout.agents",
    "EnvStateManager": "turnwise.rollout.env_manager",
    "RewardPropagationWorkflow": "turnwise.rollout.step_wise",
    "StepWiseRewardWorkflow": "turnwise.rollout.step_wise",
    "Workflow": "turnwise.rollout.workflow",
    "WorkflowTask": "turnwise.rollout.workflow",
    "Experience": "turnwise.types",
}

__all__ = [
    "WORKFLOWS",
    "AgentProxy",
    "AgentTrainer",
    "BaseAgent",
    "BaseEnv",
    "Callback",
    "ContextManager",
    "EnvStateManager",
    "Experience",
    "PPOTrainer",
    "RewardPropagationWorkflow",
    "Run",
    "StepWiseRewardWorkflow",
    "SyncMultiTurnRollout",
    "Workflow",
    "WorkflowTask",
    "__version__",
    "check_env",
    "evaluate",
    "make_env",
    "open_run",
    "resume",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'turnwise' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


class _MovedModules:
    """Finds modules under the paths that they had in earlier versions; asked after all other finders."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if not name.startswith("turnwise."):
            return None
        from turnwise.moved import find_moved  # noqa: PLC0415

        return find_moved(name)


sys.meta_path.append(_MovedModules)

"""Small worlds whose every answer is written by the test, and managers over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnwise.config.schema import ContextSettings
from turnwise.envs.base import BaseEnv
from turnwise.envs.frozen_lake import FrozenLake
from turnwise.protocols import ChatTemplate, Engine
from turnwise.rollout.agent_proxy import AgentProxy, RolloutOptions
from turnwise.rollout.env_manager import EnvConfigs, EnvStateManager
from turnwise.rollout.episode import Limits
from turnwise.rollout.workflow import EnvironmentWorkflow, Workflow


class WordWorld(BaseEnv):
    """Obeys words: what an action is called is what it does."""

    name = "words"
    has_oracle = True

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.words: list[str] = []
        self.seed = -1

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        self.seed, self.words = seed or 0, []
        return f"seed {seed} at 0"

    def step(self, action: str) -> tuple[Any, ...]:
        self.words.append(action)
        text = f"seed {self.seed} at {len(self.words)}"
        if action == "crash":
            raise RuntimeError("the world broke")
        if action == "nonsense":
            return text, 0.0, False, self._info(is_valid=False)
        if action == "timeout":
            return text, 0.25, False, True, self._info()
        return text, 1.0 if action in ("go", "win") else 0.0, action in ("win", "lose"), self._info(action == "win")

    @staticmethod
    def _info(success: bool = False, *, is_valid: bool = True) -> dict[str, object]:
        return {"success": success, "action_is_valid": is_valid, "action_is_effective": is_valid}

    @property
    def action_names(self) -> tuple[str, ...]:
        return ("go", "win", "lose", "stay")

    @property
    def instructions(self) -> str:
        return "You say words."

    @property
    def legend(self) -> str:
        return "at: how often."

    def oracle(self) -> str:
        return "go" if len(self.words) < 2 else "win"


class BrokenStart(WordWorld):
    """Cannot start on odd seeds."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        if seed is not None and seed % 2:
            raise OSError("no such level")
        return super().reset(seed, split=split, dynamics_seed=dynamics_seed)


def slippery(_tag: str, _split: str) -> FrozenLake:
    return FrozenLake(size=5, hole_rate=0.05, is_slippery=True, slip_rate=2 / 3)


def words(_tag: str, _split: str) -> WordWorld:
    return WordWorld()


def make_states(
    make_env: Callable[[str, str], BaseEnv] = words,
    *,
    groups: int = 2,
    group_size: int = 2,
    limits: Limits | None = None,
    **options: Any,
) -> EnvStateManager:
    return EnvStateManager(
        make_env,
        env_groups=groups,
        group_size=group_size,
        env_configs=options.pop("env_configs", EnvConfigs(tags=("words",), n_groups=(groups,))),
        limits=limits or Limits(max_turns=5, max_actions_per_turn=3),
        **options,
    )


def make_proxy(
    engine: Engine,
    template: ChatTemplate,
    states: EnvStateManager | None = None,
    *,
    workflow: Callable[..., Workflow] = EnvironmentWorkflow,
    context: ContextSettings | None = None,
    **rules: Any,
) -> AgentProxy:
    states = states or make_states()
    contexts = dict.fromkeys(states.env_configs.tags, context or ContextSettings())
    return AgentProxy(workflow, states, contexts, engine, template, rules=RolloutOptions(**rules))

"""Policies without a model: random play, the oracle, and an environment's own simple rules, as yardsticks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import reset_env, step_env
from turnwise.errors import EnvError
from turnwise.floor.seeds import derive_seed
from turnwise.types import Task

Rule: TypeAlias = Callable[[BaseEnv], str]


def rules_of(env: BaseEnv) -> dict[str, Rule]:
    """Every rule that can play this environment, weakest first; its episode has begun."""
    rules: dict[str, Rule] = {}
    if env.admissible_actions():
        rules["random"] = random_rule(0)
    rules.update(env.baselines)
    if env.has_oracle:
        rules["oracle"] = lambda playing: playing.oracle()
    return rules


def random_rule(seed: int) -> Rule:
    """Any of the actions that are valid now, with dice of its own."""
    rng = random.Random(seed)

    def choose(env: BaseEnv) -> str:
        actions = env.admissible_actions()
        if not actions:
            raise EnvError(
                f"{env.label()} takes any text and knows no list of actions, so random play has nothing to draw from. "
                "Play it yourself, or by its oracle where it has one."
            )
        return rng.choice(actions)

    return choose


def measure_rule(env: BaseEnv, rule: Rule, tasks: Sequence[Task], max_actions: int) -> tuple[float, float]:
    """Mean success and mean return of a rule over tasks, at most `max_actions` actions each."""
    outcomes = [_play(env, rule, task, max_actions) for task in tasks]
    successes, returns = zip(*outcomes, strict=True)
    return sum(successes) / len(tasks), sum(returns) / len(tasks)


def _play(env: BaseEnv, rule: Rule, task: Task, max_actions: int) -> tuple[bool, float]:
    """An episode that fails has what it earned until then, and no success, as in a rollout."""
    total = 0.0
    with suppress(EnvError):
        reset_env(env, seed=task.seed, split=task.split, dynamics_seed=derive_seed("rule", task.id))
        for _ in range(max_actions):
            result = step_env(env, rule(env))
            total += result.reward
            if result.done:
                return bool(result.info.get("success", False)), total
    return False, total

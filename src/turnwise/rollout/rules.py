"""Policies without a model: random play, the oracle, and an environment's own simple rules, as yardsticks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import ask_rule, reset_env, step_env
from turnwise.errors import EnvError, RewardError
from turnwise.floor.daemon_threads import call_within
from turnwise.floor.seeds import derive_seed
from turnwise.types import StepResult, Task

Rule: TypeAlias = Callable[[BaseEnv, str], str]
"""What to do in an environment that has just said this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One action of a rule, and what the world answered."""

    observation: str
    """What the world had said before."""
    action: str
    result: StepResult


def play_rule(
    env: BaseEnv, rule: Rule, task: Task, *, max_actions: int, dynamics_seed: int | None = None
) -> Iterator[Move]:
    """One episode, move by move, until the world or the budget ends it."""
    observation = reset_env(env, seed=task.seed, split=task.split, dynamics_seed=dynamics_seed)
    for _ in range(max_actions):
        action = ask_rule(env, rule, observation)
        result = step_env(env, action)
        yield Move(observation=observation, action=action, result=result)
        if result.done:
            return
        observation = result.text


def rules_of(env: BaseEnv) -> dict[str, Rule]:
    """Every rule that can play this environment, weakest first; its episode has begun."""
    rules: dict[str, Rule] = {}
    if env.admissible_actions():
        rules["random"] = random_rule(0)
    rules |= {name: _rule_of(baseline) for name, baseline in env.baselines.items()}
    if env.has_oracle:
        rules["oracle"] = oracle_rule
    return rules


def _rule_of(baseline: Callable[[BaseEnv], str]) -> Rule:
    return lambda env, _: baseline(env)


def oracle_rule(env: BaseEnv, _observation: str) -> str:
    return env.oracle()


def random_rule(seed: int) -> Rule:
    """Any of the actions that are valid now, with dice of its own."""
    rng = random.Random(seed)

    def choose(env: BaseEnv, _observation: str) -> str:
        actions = env.admissible_actions()
        if not actions:
            raise EnvError(
                f"{env.label()} takes any text and knows no list of actions, so random play has nothing to draw from. "
                "Play it yourself, or by its oracle where it has one."
            )
        return rng.choice(actions)

    return choose


def measure_rule(
    env: BaseEnv, rule: Rule, tasks: Sequence[Task], max_actions: int, *, timeout_s: float | None = None
) -> tuple[float, float]:
    """Mean success and mean return of a rule over tasks, at most `max_actions` actions and `timeout_s` each."""
    outcomes: list[tuple[bool, float]] = []
    try:
        for task in tasks:
            outcomes.append(call_within(timeout_s, partial(_outcome, env, rule, task, max_actions)))
    except TimeoutError:
        # The environment still hangs in that call, and there is no other: all that are left have failed.
        outcomes += [(False, 0.0)] * (len(tasks) - len(outcomes))
    successes, returns = zip(*outcomes, strict=True)
    return sum(successes) / len(tasks), sum(returns) / len(tasks)


def _outcome(env: BaseEnv, rule: Rule, task: Task, max_actions: int) -> tuple[bool, float]:
    """An episode that fails has what it earned until then, and no success, as in a rollout."""
    total, is_success = 0.0, False
    try:
        for move in play_rule(env, rule, task, max_actions=max_actions, dynamics_seed=derive_seed("rule", task.id)):
            total += move.result.reward
            is_success = move.result.done and bool(move.result.is_success)
    except (EnvError, RewardError):
        return False, total
    return is_success, total

"""How good is a policy? Fixed held-out tasks, each played once, and the yardsticks beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.config.schema import TurnwiseSettings
from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import reset_env
from turnwise.errors import ConfigError, did_you_mean
from turnwise.loop.build import PlayParts
from turnwise.loop.worlds import main_world
from turnwise.rollout.rules import Rule, measure_rule, rules_of
from turnwise.types import Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean outcome over the evaluation tasks."""

    env: str
    success: float
    mean_return: float
    trajectories: tuple[Trajectory, ...]

    @property
    def episodes(self) -> int:
        return len(self.trajectories)


async def evaluate_policy(parts: PlayParts, advance: Callable[[int, int], None] | None = None) -> Evaluation:
    """Play all evaluation tasks with the engine's policy; `advance(done, total)` hears of progress."""
    done: list[Trajectory] = []

    def count(trajectory: Trajectory) -> None:
        done.append(trajectory)
        if advance is not None:
            advance(len(done), len(parts.eval_tasks))

    groups = await parts.eval_proxy.collect(parts.eval_tasks, rollout=0, on_done=count)
    trajectories = tuple(trajectory for group in groups for trajectory in group.trajectories)
    return Evaluation(
        env=parts.settings.env.type,
        success=sum(t.is_success for t in trajectories) / len(trajectories),
        mean_return=sum(t.episode_return for t in trajectories) / len(trajectories),
        trajectories=trajectories,
    )


def measure_rule_in(settings: TurnwiseSettings, rule: str, tasks: Sequence[Task]) -> tuple[float, float]:
    """Success and return of a named rule in the setting and within the budget of a recipe."""
    env, rules = _env_and_rules(settings, tasks[0].split)
    if rule not in rules:
        raise ConfigError(
            f"environment '{settings.env.type}' cannot be played by '{rule}'. {did_you_mean(rule, rules)}"
        )
    return measure_rule(env, rules[rule], tasks, _max_actions(settings))


def measure_baselines(settings: TurnwiseSettings, tasks: Sequence[Task]) -> dict[str, float]:
    """Success of random play, the environment's simple rules and its oracle on the same tasks."""
    env, rules = _env_and_rules(settings, tasks[0].split)
    return {name: measure_rule(env, rule, tasks, _max_actions(settings))[0] for name, rule in rules.items()}


def _env_and_rules(settings: TurnwiseSettings, split: str) -> tuple[BaseEnv, dict[str, Rule]]:
    env = main_world(settings).make("eval")
    reset_env(env, seed=0, split=split)
    return env, rules_of(env)


def _max_actions(settings: TurnwiseSettings) -> int:
    by_turns = settings.rollout.max_turns * settings.context.answer.max_actions_per_turn
    return min(by_turns, settings.rollout.max_actions or by_turns)

"""How good is a policy? Fixed held-out tasks, each played once, and the yardsticks beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.config.schema import TurnwiseSettings
from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import reset_env
from turnwise.errors import ConfigError, RewardError, did_you_mean
from turnwise.loop.build import build_judging
from turnwise.loop.parts import PlayParts
from turnwise.rollout.judges import Judging
from turnwise.rollout.rules import Rule, measure_rule, play_rule, rules_of
from turnwise.rollout.worlds import main_world
from turnwise.types import Message, Task, Trajectory


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


async def evaluate_once(parts: PlayParts, advance: Callable[[int, int], None] | None = None) -> Evaluation:
    """The same with parts that nobody needs afterwards: their engine is closed."""
    try:
        return await evaluate_policy(parts, advance)
    finally:
        await parts.engine.close()


def is_evaluation_due(settings: TurnwiseSettings, step: int) -> bool:
    """Whether the policy is evaluated after this step, beside before and after the run."""
    return settings.eval.episodes > 0 and settings.eval.every > 0 and step % settings.eval.every == 0


def measure_rule_in(settings: TurnwiseSettings, rule: str, tasks: Sequence[Task]) -> tuple[float, float]:
    """Success and return of a named rule in the setting and within the budget of a recipe."""
    judging = build_judging(settings)
    env, rules = _env_and_rules(settings, tasks[0].split)
    if rule not in rules:
        raise ConfigError(
            f"environment '{settings.env.type}' cannot be played by '{rule}'. {did_you_mean(rule, rules)}"
        )
    return _measure(env, rules[rule], tasks, _max_actions(settings), judging)


def measure_baselines(
    settings: TurnwiseSettings, tasks: Sequence[Task], judging: Judging | None = None
) -> dict[str, float]:
    """Success of random play, the environment's simple rules and its oracle on the same tasks, by the same judge."""
    env, rules = _env_and_rules(settings, tasks[0].split)
    return {name: _measure(env, rule, tasks, _max_actions(settings), judging)[0] for name, rule in rules.items()}


def _measure(
    env: BaseEnv, rule: Rule, tasks: Sequence[Task], max_actions: int, judging: Judging | None
) -> tuple[float, float]:
    if judging is None or tasks[0].tag not in judging.tags:
        return measure_rule(env, rule, tasks, max_actions)
    scores = judging.judge.score([_converse(env, rule, task, max_actions) for task in tasks])
    numbers = [0.0 if isinstance(score, RewardError) else score for score in scores]
    return sum(n > judging.success_above for n in numbers) / len(tasks), sum(numbers) / len(tasks)


def _converse(env: BaseEnv, rule: Rule, task: Task, max_actions: int) -> list[Message]:
    """What a judge would read if the rule had played."""
    return [
        message
        for move in play_rule(env, rule, task, max_actions=max_actions)
        for message in (Message("user", move.observation), Message("assistant", move.action))
    ]


def _env_and_rules(settings: TurnwiseSettings, split: str) -> tuple[BaseEnv, dict[str, Rule]]:
    env = main_world(settings).make("eval")
    reset_env(env, seed=0, split=split)
    return env, rules_of(env)


def _max_actions(settings: TurnwiseSettings) -> int:
    by_turns = settings.rollout.max_turns * settings.context.answer.max_actions_per_turn
    return min(by_turns, settings.rollout.max_actions or by_turns)

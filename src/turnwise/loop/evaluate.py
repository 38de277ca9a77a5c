"""How good is a policy? Fixed held-out tasks of every environment, each played once, and the yardsticks beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turnwise.config.schema import TurnwiseSettings
from turnwise.envs.base import BaseEnv
from turnwise.envs.boundary import reset_env
from turnwise.errors import ConfigError, RewardError, did_you_mean
from turnwise.loop.build import build_judging
from turnwise.loop.parts import PlayParts
from turnwise.report.intervals import share_interval
from turnwise.report.metrics import split_by_tag, told_numbers
from turnwise.rollout.judges import Judging
from turnwise.rollout.rules import Rule, measure_rule, play_rule, rules_of
from turnwise.rollout.worlds import World, main_world, worlds_of
from turnwise.types import Message, Metrics, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one environment was played."""

    episodes: int
    success: float
    mean_return: float
    success_interval: tuple[float, float]
    told: Metrics
    """Its own numbers at the end of an episode, on average."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Outcome:
        success = sum(t.is_success for t in trajectories) / len(trajectories)
        return cls(
            episodes=len(trajectories),
            success=success,
            success_interval=share_interval(success, len(trajectories)),
            mean_return=sum(t.episode_return for t in trajectories) / len(trajectories),
            told=told_numbers(trajectories),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean outcome over the evaluation tasks of all environments: every episode counts the same."""

    env: str
    """The main one."""
    success: float
    mean_return: float
    trajectories: tuple[Trajectory, ...]

    @property
    def episodes(self) -> int:
        return len(self.trajectories)

    @property
    def success_interval(self) -> tuple[float, float]:
        """In which the true share of successes lies at 95 %."""
        return share_interval(self.success, self.episodes)

    def by_tag(self) -> dict[str, Outcome]:
        """The same for each environment."""
        return {tag: Outcome.of(plays) for tag, plays in split_by_tag(self.trajectories).items()}


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
    return settings.eval.is_wanted and settings.eval.every > 0 and step % settings.eval.every == 0


def measure_rule_in(settings: TurnwiseSettings, rule: str, tasks: Sequence[Task]) -> tuple[float, float]:
    """Success and return of a named rule in the main environment and within the budget of a recipe."""
    judging, world = build_judging(settings), main_world(settings)
    env, rules = _env_and_rules(world, tasks[0].split)
    if rule not in rules:
        raise ConfigError(
            f"environment '{settings.env.type}' cannot be played by '{rule}'. {did_you_mean(rule, rules)}"
        )
    own = [task for task in tasks if task.tag == world.tag]
    return _measure(world, env, rules[rule], own, judging)


def measure_baselines(
    settings: TurnwiseSettings, tasks: Sequence[Task], judging: Judging | None = None
) -> dict[str, float]:
    """Success of random play, an environment's simple rules and its oracle on the same tasks, by the same judge.

    Of several environments each has its own: `oracle/sokoban`.
    """
    found: dict[str, float] = {}
    worlds = worlds_of(settings)
    for world in worlds:
        own = [task for task in tasks if task.tag == world.tag]
        env, rules = _env_and_rules(world, tasks[0].split)
        for name, rule in rules.items():
            success, _ = _measure(world, env, rule, own, judging)
            found[name if len(worlds) == 1 else f"{name}/{world.tag}"] = success
    return found


def baseline_intervals(baselines: Mapping[str, float], tasks: Sequence[Task]) -> dict[str, tuple[float, float]]:
    """In which their true shares lie, as `measure_baselines` names them; one without a tag was held to all tasks."""
    counts = Counter(task.tag for task in tasks)
    return {
        name: share_interval(share, counts.get(name.partition("/")[2], len(tasks))) for name, share in baselines.items()
    }


def _measure(
    world: World, env: BaseEnv, rule: Rule, tasks: Sequence[Task], judging: Judging | None
) -> tuple[float, float]:
    max_actions, limit_s = world.limits.actions_left(0, 0), world.timeout_s if world.is_guarded else None
    if judging is None or tasks[0].tag not in judging.tags:
        return measure_rule(env, rule, tasks, max_actions, timeout_s=limit_s)
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


def _env_and_rules(world: World, split: str) -> tuple[BaseEnv, dict[str, Rule]]:
    env = world.make("eval")
    reset_env(env, seed=0, split=split)
    return env, rules_of(env)

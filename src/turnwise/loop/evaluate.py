"""How good is a policy? Fixed held-out tasks of every environment, and the yardsticks beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnwise.config.component import import_scripted_policy
from turnwise.config.schema import TurnwiseSettings
from turnwise.envs.base import BaseEnv
from turnwise.envs.safe_calls import closing_env, reset_env
from turnwise.errors import ConfigError, EngineError, did_you_mean
from turnwise.infra.untrusted import success_flags, success_rate
from turnwise.loop.components import RolloutComponents
from turnwise.report.evaluation import mean_success, results_of, success_interval
from turnwise.report.metrics import env_metrics, split_by_tag
from turnwise.report.statistics import wilson_interval
from turnwise.rollout.env_specs import World, all_envs, main_env
from turnwise.rollout.scoring import RewardScoring
from turnwise.rollout.scripted_policies import Rule, list_policies, record_episodes
from turnwise.types import Metrics, StopReason, Task, Trajectory

_WITHOUT_REPLY = (StopReason.ENGINE_ERROR, StopReason.TIMEOUT)
"""How an episode ends where the engine fails or hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one environment was played."""

    episodes: int
    success: float | None
    """The mean over tasks, of the episodes that say whether they succeeded; None where none does."""
    mean_return: float
    success_interval: tuple[float, float] | None
    told: Metrics
    """Its own numbers at the end of an episode, on average."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> Outcome:
        tasks = results_of(trajectories)
        return cls(
            episodes=len(trajectories),
            success=mean_success(tasks),
            success_interval=success_interval(tasks),
            mean_return=sum(t.episode_return for t in trajectories) / len(trajectories),
            told=env_metrics(trajectories),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean outcome over the evaluation tasks of all environments: every task counts the same."""

    env: str
    """The main one."""
    success: float | None
    """The mean over tasks, of the episodes that say whether they succeeded; None where none does."""
    mean_return: float
    trajectories: tuple[Trajectory, ...]

    @classmethod
    def of(cls, settings: TurnwiseSettings, trajectories: Sequence[Trajectory]) -> Evaluation:
        return cls(
            env=settings.env.type,
            success=mean_success(results_of(trajectories)),
            mean_return=sum(t.episode_return for t in trajectories) / len(trajectories),
            trajectories=tuple(trajectories),
        )

    @property
    def episodes(self) -> int:
        return len(self.trajectories)

    @property
    def success_interval(self) -> tuple[float, float] | None:
        """In which the true share of successes lies at 95 %; plays of one task are no news of other tasks."""
        return success_interval(results_of(self.trajectories))

    def by_tag(self) -> dict[str, Outcome]:
        """The same for each environment."""
        return {tag: Outcome.of(plays) for tag, plays in split_by_tag(self.trajectories).items()}


async def evaluate_policy(rollout: RolloutComponents, advance: Callable[[int, int], None] | None = None) -> Evaluation:
    """Play all evaluation tasks with the engine's policy; `advance(done, total)` receives the progress."""
    done: list[Trajectory] = []

    def count(trajectory: Trajectory) -> None:
        done.append(trajectory)
        if advance is not None:
            advance(len(done), len(rollout.eval_tasks) * rollout.settings.eval.samples)

    groups = await rollout.eval_collector.collect(rollout.eval_tasks, rollout=0, on_done=count)
    return Evaluation.of(rollout.settings, [trajectory for group in groups for trajectory in group.trajectories])


async def evaluate_once(rollout: RolloutComponents, advance: Callable[[int, int], None] | None = None) -> Evaluation:
    """The same, and close the components afterwards.

    Raises EngineError where it never gave a reply: that says nothing of the policy.
    """
    try:
        result = await evaluate_policy(rollout, advance)
    finally:
        await rollout.close()
    _check_replies(result.trajectories)
    return result


def _check_replies(trajectories: Sequence[Trajectory]) -> None:
    silent = [t for t in trajectories if t.stop_reason in _WITHOUT_REPLY and not t.segments]
    if silent and len(silent) == len(trajectories):
        raise EngineError(
            f"the engine gave no reply in any of {len(silent)} episodes, so nothing was evaluated. "
            f"{silent[0].id} ended with {silent[0].stop_reason}: {silent[0].failure}"
        )


def is_evaluation_due(settings: TurnwiseSettings, step: int) -> bool:
    """Whether the policy is evaluated after this step, beside before and after the run."""
    return settings.eval.is_wanted and settings.eval.every > 0 and step % settings.eval.every == 0


def evaluate_scripted_policy(
    settings: TurnwiseSettings, rule: str, tasks: Sequence[Task], judging: RewardScoring | None = None
) -> Evaluation:
    """How a rule plays the main environment within the budget of a recipe, each task `eval.samples` times.

    A rule is a name that the environment knows, or a function `package.module:function` that is given the environment
    and what it has just said, and returns an action.
    """
    world = main_env(settings)
    with _env_and_rules(world, tasks[0].split) as (env, rules):
        if rule not in rules and ":" in rule:
            rules[rule] = import_scripted_policy(rule)
        if rule not in rules:
            raise ConfigError(
                f"environment '{settings.env.type}' cannot be played by '{rule}'. {did_you_mean(rule, rules)}"
            )
        own = [task for task in tasks if task.tag == world.tag]
        trajectories = _play(world, env, rules[rule], own, judging, settings.eval.samples)
    return Evaluation.of(settings, trajectories)


def has_scripted_policy(settings: TurnwiseSettings, rule: str, split: str) -> bool:
    """Whether the main environment has a rule of this name."""
    with _env_and_rules(main_env(settings), split) as (_, rules):
        return rule in rules


def measure_baselines(
    settings: TurnwiseSettings, tasks: Sequence[Task], judging: RewardScoring | None = None
) -> dict[str, float]:
    """Success of random play, an environment's simple rules and its oracle on the same tasks, by the same judge.

    Of several environments each has its own: `oracle/sokoban`.
    """
    found: dict[str, float] = {}
    worlds = all_envs(settings)
    for world in worlds:
        own = [task for task in tasks if task.tag == world.tag]
        with _env_and_rules(world, tasks[0].split) as (env, rules):
            for name, rule in rules.items():
                played = _play(world, env, rule, own, judging)
                share = success_rate(success_flags(played))
                assert share is not None, "an environment always says it"
                found[name if len(worlds) == 1 else f"{name}/{world.tag}"] = share
    return found


def baseline_intervals(baselines: Mapping[str, float], tasks: Sequence[Task]) -> dict[str, tuple[float, float]]:
    """In which their true shares lie, as `measure_baselines` names them; one without a tag was held to all tasks."""
    counts = Counter(task.tag for task in tasks)
    return {
        name: wilson_interval(share, counts.get(name.partition("/")[2], len(tasks)))
        for name, share in baselines.items()
    }


def _play(
    world: World, env: BaseEnv, rule: Rule, tasks: Sequence[Task], judging: RewardScoring | None, samples: int = 1
) -> list[Trajectory]:
    max_actions, limit_s = world.limits.actions_left(0, 0), world.timeout_s if world.runs_in_thread else None
    played = record_episodes(env, rule, tasks, max_actions, samples=samples, timeout_s=limit_s)
    return played if judging is None else judging.apply(played)


@contextmanager
def _env_and_rules(world: World, split: str) -> Iterator[tuple[BaseEnv, dict[str, Rule]]]:
    with closing_env(world.make("eval")) as env:
        reset_env(env, seed=0, split=split)
        yield env, list_policies(env)

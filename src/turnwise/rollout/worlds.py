"""The environments of a run: the one of `env`, and those mixed in, each with its own conversation and budget."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.config.component import ENVS, gives_no_rewards
from turnwise.config.kinds import EnvSettings
from turnwise.config.load import env_params
from turnwise.config.schema import ContextSettings, NoIsolation, ProcessIsolation, RayIsolation, TurnwiseSettings
from turnwise.envs.adapters.external import ForeignWorld
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.isolation import IsolatedEnv, RayEnv, is_in_actor
from turnwise.envs.safe_calls import closing_env, count_tasks
from turnwise.errors import ConfigError
from turnwise.rollout.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One environment: how it is made, talked to and limited, and its share of a rollout."""

    tag: str
    groups: int
    env: EnvSettings
    context: ContextSettings
    limits: Limits
    isolation: NoIsolation | ProcessIsolation | RayIsolation
    timeout_s: float | None = None
    """`rollout.episode_timeout_s`."""

    @property
    def is_guarded(self) -> bool:
        """Whether its calls are made in threads: one that hangs there can be left behind, one on the loop cannot.

        Our own worlds do not hang, and are quicker than the way into a thread.
        """
        return self.timeout_s is not None and self.env.type not in ENVS.shipped

    @property
    def is_judged(self) -> bool:
        """Whether its rewards come from a judge."""
        return gives_no_rewards(self.env.type)

    def count_tasks(self, split: str) -> int | None:
        """How many tasks it has in a split; None where there is no end of them."""
        with closing_env(self.make(split)) as env:
            return count_tasks(env, split)

    def make(self, split: str) -> BaseEnv:
        params = env_params(self.env, split)
        if isinstance(self.isolation, NoIsolation):
            env = make_env(self.env.type, **params)
            env.is_slow = env.is_slow or self.is_guarded
            if self.timeout_s is not None and isinstance(env, ForeignWorld):
                # By then its episode is given up.
                env.limit_calls(self.timeout_s)
            return env
        limits = self.isolation
        if isinstance(limits, RayIsolation):
            if not is_in_actor():
                return make_env(self.env.type, **params)
            return RayEnv(self.env.type, params, time_limit_s=limits.time_limit_s, cpus=limits.cpus)
        return IsolatedEnv(
            self.env.type,
            params,
            time_limit_s=limits.time_limit_s,
            max_memory_mb=limits.max_memory_mb,
            python=limits.python,
        )


def main_world(settings: TurnwiseSettings) -> World:
    """The environment that evaluation is about."""
    rollout, context = settings.rollout, settings.context
    return World(
        tag=settings.env.type,
        groups=rollout.groups,
        env=settings.env,
        context=context,
        limits=_limits(rollout.max_turns, rollout.max_actions, context),
        isolation=rollout.isolation,
        timeout_s=rollout.episode_timeout_s,
    )


def worlds_of(settings: TurnwiseSettings) -> tuple[World, ...]:
    """Everything that training plays, the main environment first."""
    mixed = (
        World(
            tag=tag,
            groups=other.groups,
            env=other.env,
            context=other.context,
            limits=_limits(other.max_turns, other.max_actions, other.context),
            isolation=settings.rollout.isolation,
            timeout_s=settings.rollout.episode_timeout_s,
        )
        for tag, other in settings.mix.by_tag().items()
    )
    return main_world(settings), *mixed


def count_held_out(settings: TurnwiseSettings, split: str = "eval") -> dict[str, int]:
    """How many tasks of each environment an evaluation plays."""
    episodes, counts = settings.eval.episodes, dict[str, int]()
    for world in worlds_of(settings):
        count = world.count_tasks(split) if episodes == "all" else episodes
        if count is None:
            raise ConfigError(
                f"eval.episodes: 'all' given; environment '{world.env.type}' has no end of tasks for evaluation here. "
                "Set eval.episodes to a number."
            )
        counts[world.tag] = count
    return counts


def _limits(max_turns: int, max_actions: int | None, context: ContextSettings) -> Limits:
    return Limits(
        max_turns=max_turns, max_actions=max_actions, max_actions_per_turn=context.answer.max_actions_per_turn
    )

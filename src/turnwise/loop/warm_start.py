"""Before reinforcement learning: demonstrations by the oracle, imitated over the same tokens."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.config.schema import OracleWarmStart
from turnwise.envs.tasks import SeedTasks
from turnwise.errors import ConfigError, LearnError
from turnwise.experience.build import split_trajectory
from turnwise.learn.warm_start import imitate
from turnwise.loop.build import TrainParts, build_env, build_states, first_train_seed, tag_of
from turnwise.rollout.demonstrations import demonstrate

_SEED_OFFSET = 5_000_000
"""Demonstrations use training layouts that the run's own rollouts do not reach."""


def warm_start(parts: TrainParts, settings: OracleWarmStart, advance: Callable[[int, int], None]) -> dict[str, float]:
    """Play demonstrations, imitate them, freeze the result as the reference; says what was done."""
    run = parts.settings
    if not build_env(run, "train").has_oracle:
        raise ConfigError(
            f"warm_start.type is 'oracle' and '{run.env.type}' has no oracle. Set warm_start.type to 'none'."
        )
    tasks = SeedTasks([tag_of(run)], [settings.episodes], first_train_seed(run) + _SEED_OFFSET)
    states = build_states(run, "train", num_groups=settings.episodes, group_size=1)
    trajectories = demonstrate(states, parts.context, parts.template, run.context.answer, tasks.take(settings.episodes))
    experiences = [e for trajectory in trajectories for e in split_trajectory(trajectory)]
    if not experiences:
        failure = next((t.failure for t in trajectories if t.failure), "")
        raise LearnError(f"no demonstration of the oracle can be imitated. {failure}")
    loss = imitate(
        parts.learner.actor,
        experiences,
        steps=settings.steps,
        batch_rows=settings.batch_rows,
        lr=settings.lr,
        seed=run.run.seed,
        micro_batch_tokens=run.learn.micro_batch_tokens,
        on_step=lambda step, _loss: advance(step, settings.steps),
    )
    parts.learner.refresh_reference()
    return {"demonstrations": settings.episodes, "rows": len(experiences), "steps": settings.steps, "loss": loss}

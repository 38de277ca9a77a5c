"""Demonstrations by the oracle, imitated over the same tokens: before reinforcement learning, or mixed into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from turnwise.config.sections.learn import FilePtx, NoPtx, OraclePtx
from turnwise.config.sections.warm_start import OracleWarmStart
from turnwise.envs.prompts.files import Fields, read_prompts
from turnwise.envs.tasks import SeedTasks
from turnwise.errors import ConfigError, LearnError
from turnwise.experience.build import split_trajectory
from turnwise.learn.warm_start import imitate
from turnwise.loop.build import TrainParts, build_states, first_train_seed
from turnwise.loop.worlds import World, main_world, worlds_of
from turnwise.rollout.demonstrations import demonstrate, recite
from turnwise.types import Experience, Trajectory

_WARM_START_OFFSET = 5_000_000
"""Demonstrations use training layouts that the run's own rollouts do not reach."""
_PTX_OFFSET = 7_000_000
"""And what is mixed in later is not what the policy started from."""


def warm_start(parts: TrainParts, settings: OracleWarmStart, advance: Callable[[int, int], None]) -> dict[str, float]:
    """Play demonstrations, imitate them, freeze the result as the reference; says what was done."""
    run = parts.settings
    experiences = _demonstrations(parts, settings.episodes, _WARM_START_OFFSET, asked_by="warm_start.type")
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


def mix_in_demonstrations(parts: TrainParts) -> None:
    """Give the learner the demonstrations that `learn.ptx` mixes into its updates."""
    match parts.settings.learn.ptx:
        case OraclePtx() as ptx:
            parts.learner.supervise(_demonstrations(parts, ptx.episodes, _PTX_OFFSET, asked_by="learn.ptx.type"))
        case FilePtx() as ptx:
            parts.learner.supervise(_recitations(parts, ptx))
        case NoPtx():
            pass


def _recitations(parts: TrainParts, ptx: FilePtx) -> list[Experience]:
    fields = Fields(prompt=ptx.prompt_field, response=ptx.response_field, section="learn.ptx")
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(read_prompts(ptx.path, fields), start=1):
        if row.response is None:
            raise ConfigError(
                f"learn.ptx.path: row {number} of '{ptx.path}' has no text under '{ptx.response_field}'; every row "
                "must have a response. Set learn.ptx.response_field to the key that holds it."
            )
        pairs.append((row.prompt, row.response))
    limit = parts.settings.context.max_tokens
    trajectories = recite(pairs, parts.template)
    for trajectory, (prompt, _) in zip(trajectories, pairs, strict=True):
        if len(trajectory.segments[0]) > limit:
            raise ConfigError(
                f"learn.ptx.path: the row {prompt[:40]!r} has {len(trajectory.segments[0])} tokens; expected at most "
                f"context.max_tokens = {limit}. Shorten the row, or raise the limit."
            )
    return [e for trajectory in trajectories for e in split_trajectory(trajectory)]


def _demonstrations(parts: TrainParts, num_episodes: int, seed_offset: int, *, asked_by: str) -> list[Experience]:
    """Of every world that has an oracle; the main one must."""
    run = parts.settings
    if not main_world(run).make("train").has_oracle:
        raise ConfigError(f"{asked_by} is 'oracle' and '{run.env.type}' has no oracle. Set {asked_by} to 'none'.")
    trajectories = [
        trajectory
        for world in worlds_of(run)
        if world.make("train").has_oracle
        for trajectory in _play_demonstrations(parts, replace(world, groups=num_episodes), seed_offset)
    ]
    experiences = [e for trajectory in trajectories for e in split_trajectory(trajectory)]
    if not experiences:
        failure = next((t.failure for t in trajectories if t.failure), "")
        raise LearnError(f"no demonstration of the oracle can be imitated. {failure}")
    return experiences


def _play_demonstrations(parts: TrainParts, world: World, seed_offset: int) -> list[Trajectory]:
    tasks = SeedTasks([world.tag], [world.groups], first_train_seed(parts.settings) + seed_offset)
    states = build_states(parts.settings, [world], "train", group_size=1)
    return demonstrate(states, parts.context, parts.template, world.context.answer, tasks.take(world.groups))

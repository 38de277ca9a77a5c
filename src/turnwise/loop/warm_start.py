"""Demonstrations by the oracle, imitated over the same tokens: before reinforcement learning, or mixed into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from turnwise.config.sections.learn import FilePtx, NoPtx, OraclePtx
from turnwise.config.sections.warm_start import OracleWarmStart
from turnwise.context.recorder import require_end_of_turn
from turnwise.errors import ConfigError, ContextOverflow, LearnError
from turnwise.experience.build import split_trajectory
from turnwise.loop.build import Stage, first_train_seed
from turnwise.loop.parts import LearnParts
from turnwise.protocols import Imitation
from turnwise.rollout.chosen import read_pairs, require_oracle
from turnwise.rollout.demonstrations import DemonstrationWorkflow, NoEngine, recite
from turnwise.rollout.worlds import World, worlds_of
from turnwise.types import Experience, Task, Trajectory

_WARM_START_OFFSET = 5_000_000
"""Demonstrations use training layouts that the run's own rollouts do not reach."""
_PTX_OFFSET = 7_000_000
"""And what is mixed in later is not what the policy started from."""


async def warm_start(
    parts: LearnParts, settings: OracleWarmStart, advance: Callable[[int, int], None]
) -> dict[str, float]:
    """Play demonstrations and imitate them; says what was done."""
    experiences = await _demonstrations(parts, settings.episodes, _WARM_START_OFFSET, asked_by="warm_start.type")
    how = Imitation(steps=settings.steps, batch_rows=settings.batch_rows, lr=settings.lr)
    loss = parts.learner.imitate(experiences, how, advance)
    return {"demonstrations": settings.episodes, "rows": len(experiences), "steps": settings.steps, "loss": loss}


async def mix_in_demonstrations(parts: LearnParts) -> None:
    """Give the learner the demonstrations that `learn.ptx` mixes into its updates."""
    match parts.settings.learn.ptx:
        case OraclePtx() as ptx:
            parts.learner.supervise(await _demonstrations(parts, ptx.episodes, _PTX_OFFSET, asked_by="learn.ptx.type"))
        case FilePtx() as ptx:
            parts.learner.supervise(_recitations(parts, ptx))
        case NoPtx():
            pass


def _recitations(parts: LearnParts, ptx: FilePtx) -> list[Experience]:
    pairs, limit = read_pairs(ptx), parts.settings.context.max_tokens
    try:
        trajectories = recite(pairs, parts.template, max_tokens=limit)
    except ContextOverflow as overflow:
        raise ConfigError(f"learn.ptx.path: {overflow} Or shorten the row.") from overflow
    return [e for trajectory in trajectories for e in split_trajectory(trajectory)]


async def _demonstrations(parts: LearnParts, num_episodes: int, seed_offset: int, *, asked_by: str) -> list[Experience]:
    """Of every world that has an oracle; the main one must."""
    run = parts.settings
    require_oracle(run, asked_by=asked_by)
    require_end_of_turn(parts.template)
    trajectories = [
        trajectory
        for world in worlds_of(run)
        if world.make("train").has_oracle
        for trajectory in await _play_demonstrations(parts, replace(world, groups=num_episodes), seed_offset)
    ]
    experiences = [e for trajectory in trajectories for e in split_trajectory(trajectory)]
    if not experiences:
        failure = next((t.failure for t in trajectories if t.failure), "")
        raise LearnError(f"no demonstration of the oracle can be imitated. {failure}")
    return experiences


async def _play_demonstrations(parts: LearnParts, world: World, seed_offset: int) -> list[Trajectory]:
    first = first_train_seed(parts.settings) + seed_offset
    tasks = [Task(tag=world.tag, seed=first + number) for number in range(world.groups)]
    stage = Stage(settings=parts.settings, template=parts.template, engine=NoEngine())
    proxy = stage.proxy([world], split="train", workflow=DemonstrationWorkflow)
    groups = await proxy.collect(tasks, rollout=0)
    return [trajectory for group in groups for trajectory in group.trajectories]

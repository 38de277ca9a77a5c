"""Demonstrations by the oracle or an endpoint, imitated over the same tokens: before learning, or mixed into it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from turnwise.config.schema import EndpointWarmStart, ImitationSettings, TurnwiseSettings
from turnwise.config.schema_learn import FilePtx, NoPtx, OraclePtx
from turnwise.context.recorder import require_end_of_turn
from turnwise.errors import ConfigError, ContextOverflow, LearnError, ModelError
from turnwise.experience.build import merge_prefixes, split_trajectory
from turnwise.infra.wait_tracking import track_compute
from turnwise.loop.build import Stage, build_scorer, first_train_seed, open_endpoint
from turnwise.loop.components import TrainerComponents
from turnwise.protocols import ChatTemplate, SFTConfig
from turnwise.rollout.env_specs import World, all_envs, find_workflow, has_oracle, read_pairs, require_oracle
from turnwise.rollout.scripted_policies import DemonstrationWorkflow, NullEngine, record_reply
from turnwise.rollout.workflow import Workflow
from turnwise.types import Experience, IntArray, Task, Trajectory

_WARM_START_OFFSET = 5_000_000
"""Demonstrations use training layouts that the run's own rollouts do not reach."""
_PTX_OFFSET = 7_000_000
"""And what is mixed in later is not what the policy started from."""


async def warm_start(
    trainer: TrainerComponents,
    template: ChatTemplate,
    settings: ImitationSettings,
    advance: Callable[[int, int], None],
) -> dict[str, float]:
    """Train on demonstrations before reinforcement learning; return what was done."""
    if isinstance(settings, EndpointWarmStart):
        experiences, told = await _lessons_of_endpoint(trainer.settings, template, settings)
    else:
        experiences = await _demonstrations(
            trainer.settings, template, settings.episodes, _WARM_START_OFFSET, asked_by="warm_start.type"
        )
        told = {"demonstrations": settings.episodes}
    how = SFTConfig(steps=settings.steps, batch_rows=settings.batch_rows, lr=settings.lr)
    with track_compute("the imitation of demonstrations"):
        loss = trainer.learner.imitate(experiences, how, advance)
    return {**told, "rows": len(experiences), "steps": settings.steps, "loss": loss}


async def mix_in_demonstrations(trainer: TrainerComponents, template: ChatTemplate) -> None:
    """Give the learner the demonstrations that `learn.ptx` mixes into its updates."""
    settings = trainer.settings
    match settings.learn.ptx:
        case OraclePtx() as ptx:
            trainer.learner.supervise(
                await _demonstrations(settings, template, ptx.episodes, _PTX_OFFSET, asked_by="learn.ptx.type")
            )
        case FilePtx() as ptx:
            trainer.learner.supervise(_ptx_trajectories(settings, template, ptx))
        case NoPtx():
            pass


def _ptx_trajectories(settings: TurnwiseSettings, template: ChatTemplate, ptx: FilePtx) -> list[Experience]:
    pairs, limit = read_pairs(ptx), settings.context.max_tokens
    try:
        trajectories = record_reply(pairs, template, max_tokens=limit)
    except ContextOverflow as overflow:
        raise ConfigError(f"learn.ptx.path: {overflow} Or shorten the row.") from overflow
    return [e for trajectory in trajectories for e in split_trajectory(trajectory)]


async def _demonstrations(
    settings: TurnwiseSettings, template: ChatTemplate, num_episodes: int, seed_offset: int, *, asked_by: str
) -> list[Experience]:
    """Of every environment that has an oracle; the main one must."""
    require_oracle(settings, asked_by=asked_by)
    require_end_of_turn(template)
    stage = Stage(settings=settings, template=template, engine=NullEngine())
    trajectories = [
        trajectory
        for world in all_envs(settings)
        if has_oracle(world)
        for trajectory in await _play(stage, replace(world, groups=num_episodes), seed_offset, DemonstrationWorkflow)
    ]
    experiences = [e for trajectory in trajectories for e in split_trajectory(trajectory)]
    if not experiences:
        failure = next((t.failure for t in trajectories if t.failure), "")
        raise LearnError(f"no demonstration of the oracle can be imitated. {failure}")
    return experiences


async def _play(
    stage: Stage, world: World, seed_offset: int, workflow: type[Workflow] | None = None
) -> list[Trajectory]:
    """One episode of every task, or of each player who meets in it, greedily."""
    first = first_train_seed(stage.settings) + seed_offset
    tasks = [Task(tag=world.tag, seed=first + number) for number in range(world.groups)]
    chosen = workflow or find_workflow(stage.settings)
    proxy = stage.proxy([world], split="train", group_size=chosen.seats, workflow=chosen)
    with closing(proxy):
        groups = await proxy.collect(tasks, rollout=0)
    return [trajectory for group in groups for trajectory in group.trajectories]


# --- an endpoint as the teacher --------------------------------------------------------------------------------------


async def _lessons_of_endpoint(
    run: TurnwiseSettings, template: ChatTemplate, settings: EndpointWarmStart
) -> tuple[list[Experience], dict[str, float]]:
    """Of every world what the endpoint played well enough, and how much that was."""
    require_end_of_turn(template)
    # In a thread: it looks whether the endpoint is there, and waits for the answer.
    engine = await asyncio.to_thread(open_endpoint, settings, template, where="warm_start")
    stage = Stage(settings=run, template=template, engine=engine, judging=build_scorer(run))
    kept: list[Trajectory] = []
    left_out: Counter[str] = Counter()
    failure = ""
    try:
        for world in all_envs(run):
            for trajectory in await _play(stage, replace(world, groups=settings.episodes), _WARM_START_OFFSET):
                reason = _reason_against(trajectory, world, settings, template)
                left_out[reason] += bool(reason)
                failure = failure or trajectory.failure
                kept += [] if reason else [trajectory]
    finally:
        await engine.close()
    # A program's calls have a row each; one that goes on from another is read once.
    experiences = merge_prefixes([experience for trajectory in kept for experience in split_trajectory(trajectory)])
    if not experiences:
        told = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
        raise LearnError(f"warm_start.url: no episode of the endpoint can be imitated: {told}. {failure}".rstrip())
    return experiences, {"demonstrations": len(kept), "played": len(kept) + left_out.total()}


def _reason_against(trajectory: Trajectory, world: World, settings: EndpointWarmStart, template: ChatTemplate) -> str:
    """Why an episode is not imitated; nothing where it is."""
    if trajectory.stop_reason.is_error or not trajectory.turns:
        return "failed"
    if settings.keep == "successes" and trajectory.is_success is None:
        return "did not say whether they succeeded (is_success; or set warm_start.keep=all)"
    if settings.keep == "successes" and not trajectory.is_success:
        return "did not succeed"
    # The policy's replies begin with the prefix; what was said in another way would be taught as something else.
    own_prefix = world.context.answer.forced_prefix
    spelled = [
        _prefix_behind(before, own_prefix, template) + template.decode_reply(reply)
        for before, reply in _replies(trajectory)
    ]
    return (
        "" if spelled == [turn.response_text for turn in trajectory.turns] else "cannot be spelled as the policy would"
    )


def _replies(trajectory: Trajectory) -> Sequence[tuple[IntArray, IntArray]]:
    """Of every turn the ids that stand before the reply, and its own."""
    replies = []
    for turn in trajectory.turns:
        segment = trajectory.segments[turn.segment_index]
        sampled = np.flatnonzero(segment.turn_ids == turn.index)
        replies.append((segment.token_ids[: sampled[0]], segment.token_ids[sampled]))
    return replies


def _prefix_behind(before: IntArray, own_prefix: str, template: ChatTemplate) -> str:
    """What a reply was made to begin with: a call, where the program requires one, or what the run says."""
    try:
        call = template.tool_call_prefix()
    except ModelError:
        return own_prefix
    # A token has a character at least.
    return call if template.decode_reply(before[-len(call) :]).endswith(call) else own_prefix

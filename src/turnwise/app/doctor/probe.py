"""Sixteen episodes with the real model: whether it can be understood, what it earns, and whether the budgets suffice.

In: settings that can be played. Out: what was counted, and findings about it. Nothing is learnt and nothing is kept. A
policy that a warm start will teach first is not blamed for what it cannot do yet; the oracle that teaches it is tried.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

import numpy as np

from turnwise.config.schema import OracleWarmStart, TurnwiseSettings
from turnwise.infra.untrusted import share_of, tell_successes
from turnwise.loop.build import Stage, build_judging, first_train_seed, load_words, open_engine
from turnwise.protocols import ChatTemplate
from turnwise.report.metrics import group_metrics
from turnwise.rollout.env_specs import World
from turnwise.rollout.scripted_policies import DemonstrationWorkflow, NoEngine
from turnwise.rollout.workflow import Workflow
from turnwise.types import Group, StopReason, Task, Trajectory

NUM_EPISODES = 16
_GROUP_SIZES = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What sixteen episodes in one environment were like."""

    episodes: int
    failed: int
    failure: str
    """The first one's."""
    success: float | None
    """None: nobody says what one is."""
    turns: int
    valid_turns: int
    mean_return: float
    return_std: float
    groups: int
    dead_groups: int
    """Groups whose siblings all earned the same."""
    replies: int
    cut_replies: int
    mean_reply_tokens: float
    longest_reply_tokens: int
    longest_episode_tokens: int
    """Of the longest segment: what the context must hold."""
    overflowed: int
    """Episodes that the context ended."""
    out_of_turns: int
    sampled_tokens: int
    seconds: float

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The probes of all environments by their tags; of the oracle where it teaches the policy."""

    policy: dict[str, Probe]
    oracle: Probe | None


async def probe(
    settings: TurnwiseSettings,
    model_path: str,
    worlds: Sequence[World],
    advance: Callable[[int, int], None],
    *,
    is_judged: bool,
) -> Probed:
    """Play in each environment; without the judge where `is_judged` is false, and its rewards then say nothing."""
    words = load_words(settings, model_path)
    judging = build_judging(settings) if is_judged else None
    engine = open_engine(words, model_path)
    num_done, num_total = 0, NUM_EPISODES * len(worlds)

    def count(_trajectory: Trajectory) -> None:
        nonlocal num_done
        num_done += 1
        advance(num_done, num_total)

    stage = Stage(settings=settings, template=words.template, engine=engine, judging=judging)
    try:
        policy = {world.tag: await _play(stage, world, count) for world in worlds}
    finally:
        await engine.close()
    oracle = None
    if isinstance(settings.warm_start, OracleWarmStart):
        reciting = Stage(settings=settings, template=words.template, engine=NoEngine())
        oracle = await _play(reciting, worlds[0], lambda _: None, DemonstrationWorkflow)
    return Probed(policy=policy, oracle=oracle)


async def _play(
    stage: Stage, world: World, on_done: Callable[[Trajectory], None], workflow: type[Workflow] | None = None
) -> Probe:
    rollout = stage.settings.rollout
    group_size = next(size for size in _GROUP_SIZES if size <= rollout.group_size)
    groups = NUM_EPISODES // group_size
    proxy = stage.proxy(
        [replace(world, groups=groups)],
        split="train",
        group_size=group_size,
        temperature=rollout.temperature,
        workflow=workflow,
    )
    first = first_train_seed(stage.settings)
    tasks = [Task(tag=world.tag, seed=first + number) for number in range(groups)]
    started_s = time.perf_counter()
    with closing(proxy):
        played = await proxy.collect(tasks, rollout=0, on_done=on_done)
    return count_episodes(played, stage.template, world.context.max_response_tokens, time.perf_counter() - started_s)


def count_episodes(groups: Sequence[Group], template: ChatTemplate, max_response_tokens: int, seconds: float) -> Probe:
    """What episodes of one environment were like, whoever played them."""
    played = [trajectory for group in groups for trajectory in group.trajectories]
    failures = [t.failure for t in played if t.stop_reason.is_error]
    turns = [turn for t in played for turn in t.turns]
    returns = [t.episode_return for t in played]
    replies = [reply for t in played for reply in replies_of(t)]
    metrics = group_metrics(groups)
    return Probe(
        episodes=len(played),
        failed=len(failures),
        failure=next(iter(failures), ""),
        success=share_of(tell_successes(played)),
        turns=len(turns),
        valid_turns=sum(turn.is_valid and turn.penalty >= 0 for turn in turns),
        mean_return=statistics.fmean(returns),
        return_std=statistics.pstdev(returns),
        groups=len(groups),
        dead_groups=round(metrics.get("rollout/dead_groups", 0.0) * len(groups)),
        replies=len(replies),
        cut_replies=sum(len(r) >= max_response_tokens and int(r[-1]) not in template.stop_ids for r in replies),
        mean_reply_tokens=statistics.fmean(map(len, replies)) if replies else 0.0,
        longest_reply_tokens=max(map(len, replies), default=0),
        longest_episode_tokens=max((len(segment) for t in played for segment in t.segments), default=0),
        overflowed=sum(t.stop_reason is StopReason.CONTEXT_OVERFLOW for t in played),
        out_of_turns=sum(t.stop_reason is StopReason.MAX_TURNS for t in played),
        sampled_tokens=sum(map(len, replies)),
        seconds=seconds,
    )


def replies_of(trajectory: Trajectory) -> list[np.ndarray]:
    """The sampled tokens of each reply."""
    return [
        segment.token_ids[segment.loss_mask & (segment.turn_ids == turn)]
        for segment in trajectory.segments
        for turn in segment.sampled_turns()
    ]

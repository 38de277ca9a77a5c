"""The serial loop: explore, store, credit, learn, publish, one after another. The reference for all other loops.

Read top to bottom, it is the whole library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnwise.credit.shaping import normalise_rewards
from turnwise.errors import LearnError
from turnwise.experience.build import build_experiences
from turnwise.experience.merge import merge_prefixes
from turnwise.learn.pack import pack
from turnwise.loop.build import TrainParts
from turnwise.loop.explore import Explored, explore
from turnwise.report.metrics import Stopwatch, group_metrics
from turnwise.types import Experience, Group, Metrics, StepReport

_MAX_STARVED = 5
"""Steps in a row without anything to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """What one step of the loop did."""

    step: int
    """Counted from 1."""
    groups: list[Group]
    metrics: Metrics
    tokens_sampled: int
    tokens_trained: int
    tasks: Mapping[str, Any]
    """Where the task source stands before the next step's rollout."""


async def train_serial(
    parts: TrainParts, watch: Stopwatch, *, start_step: int, on_step: Callable[[LoopStep], Awaitable[None]]
) -> None:
    """Run from `start_step` steps done to `learn.steps`."""
    settings = parts.settings
    num_starved = 0
    for step in range(start_step + 1, settings.learn.steps + 1):
        env_s = env_seconds(parts)
        with watch.section("rollout"):
            explored = await explore(parts, step)
            parts.buffer.add(build_experiences(explored.kept))
        watch.move("rollout", "env", env_seconds(parts) - env_s)
        with watch.section("learn"):
            experiences = parts.buffer.take(step)
            num_starved = 0 if experiences else num_starved + 1
            refuse_to_starve(explored, step, num_starved)
            report = learn_from(parts, experiences)
        if step % settings.sync.interval == 0:
            with watch.section("sync"):
                await parts.channel.publish(parts.learner.weights(), report.policy_version)
        await on_step(describe_step(parts, step, explored, experiences, report, tasks=parts.tasks.state()))


def describe_step(
    parts: TrainParts,
    step: int,
    explored: Explored,
    experiences: list[Experience],
    report: StepReport,
    *,
    tasks: Mapping[str, Any],
) -> LoopStep:
    """What a step did, for whoever reports it."""
    return LoopStep(
        step=step,
        groups=explored.played,
        metrics={
            **group_metrics(explored.played),
            **explored.metrics,
            **report.metrics,
            **_staleness(experiences, report.policy_version - 1),
            "buffer/experiences_left": float(len(parts.buffer)),
            "buffer/experiences_dropped": float(parts.buffer.num_dropped),
        },
        tokens_sampled=count_sampled(explored.played),
        tokens_trained=sum(e.segment.num_action_tokens for e in experiences) * parts.settings.learn.epochs,
        tasks=tasks,
    )


def _staleness(experiences: list[Experience], policy_version: int) -> Metrics:
    """How many updates old the weights were that sampled what the update to come learns from."""
    ages = [policy_version - experience.policy_version for experience in experiences]
    return {"sync/staleness_mean": sum(ages) / len(ages), "sync/staleness_max": float(max(ages))} if ages else {}


def learn_from(parts: TrainParts, experiences: list[Experience]) -> StepReport:
    """Merge, shape, credit, pack, update; with nothing to learn from, the policy stays as it is."""
    if not experiences:
        return StepReport(policy_version=parts.learner.policy_version, metrics={})
    scale = parts.settings.reward.normalisation
    rows = merge_prefixes(experiences)
    shaped = normalise_rewards(rows, grouping=scale.grouping, method=scale.method)
    samples = parts.credit(shaped, parts.learner.annotate(shaped))
    report = parts.learner.step(pack(samples))
    return replace(report, metrics={**report.metrics, **unmerged_metrics(experiences)})


def unmerged_metrics(experiences: list[Experience]) -> Metrics:
    """What `learn/rows` and `learn/tokens` would be if no experience extended another."""
    return {
        "learn/unmerged_rows": float(len(experiences)),
        "learn/unmerged_tokens": float(sum(len(e.segment) for e in experiences)),
    }


def refuse_to_starve(explored: Explored, step: int, num_starved: int) -> None:
    """Nothing to learn from is an error: at once where episodes failed, after a while where a filter dropped them."""
    if not num_starved:
        return
    if explored.kept or all(t.stop_reason.is_error for group in explored.played for t in group.trajectories):
        raise LearnError(f"no episode of step {step} can be learnt from. {first_failure(explored.played)}")
    if num_starved >= _MAX_STARVED:
        raise LearnError(
            f"no group has passed reward.filter in {num_starved} steps in a row, up to step {step}. Its siblings earn "
            "the same. Loosen the filter, make tasks easier or harder, or raise rollout.group_size or temperature."
        )


def env_seconds(parts: TrainParts) -> float:
    proxies = [parts.proxy] if parts.greedy_proxy is None else [parts.proxy, parts.greedy_proxy]
    return sum(proxy.front.env_seconds for proxy in proxies)


def first_failure(groups: list[Group]) -> str:
    """Why the first episode that failed did so."""
    failed = (t for group in groups for t in group.trajectories if t.failure)
    return next((f"{t.id} ended with {t.stop_reason}: {t.failure}" for t in failed), "None of them failed.")


def count_sampled(groups: list[Group]) -> int:
    plays = [t for group in groups for t in (*group.trajectories, group.greedy) if t is not None]
    return sum(segment.num_action_tokens for t in plays for segment in t.segments)

"""The serial loop: explore, store, credit, learn, publish, one after another. The reference for all other loops.

Read top to bottom, it is the whole library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnwise.errors import LearnError
from turnwise.experience.build import build_experiences
from turnwise.learn.pack import pack
from turnwise.loop.build import TrainParts
from turnwise.report.metrics import Stopwatch, group_metrics
from turnwise.types import Group, Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """What one step of the loop did."""

    step: int
    """Counted from 1."""
    groups: list[Group]
    metrics: Metrics
    tokens_sampled: int
    tokens_trained: int


async def train_serial(
    parts: TrainParts, watch: Stopwatch, *, start_step: int, on_step: Callable[[LoopStep], Awaitable[None]]
) -> None:
    """Run from `start_step` steps done to `learn.steps`."""
    settings = parts.settings
    for step in range(start_step + 1, settings.learn.steps + 1):
        env_s = parts.proxy.states.env_seconds
        with watch.section("rollout"):
            groups = await parts.proxy.collect(parts.tasks.take(settings.rollout.groups), rollout=step)
            parts.buffer.add(build_experiences(groups))
        watch.move("rollout", "env", parts.proxy.states.env_seconds - env_s)
        with watch.section("learn"):
            experiences = parts.buffer.take(settings.buffer.train_batch_size)
            if not experiences:
                raise LearnError(f"no episode of step {step} can be learnt from. {first_failure(groups)}")
            samples = parts.credit(experiences, parts.learner.annotate(experiences))
            report = parts.learner.step(pack(samples))
        if step % settings.sync.interval == 0:
            with watch.section("sync"):
                await parts.channel.publish(parts.learner.weights(), report.policy_version)
        tokens_sampled = count_sampled(groups)
        await on_step(
            LoopStep(
                step=step,
                groups=groups,
                metrics={
                    **group_metrics(groups),
                    **report.metrics,
                    "buffer/experiences_left": float(len(parts.buffer)),
                },
                tokens_sampled=tokens_sampled,
                tokens_trained=sum(s.experience.segment.num_action_tokens for s in samples) * settings.learn.epochs,
            )
        )


def first_failure(groups: list[Group]) -> str:
    """Why the first episode that failed did so."""
    failed = (t for group in groups for t in group.trajectories if t.failure)
    return next((f"{t.id} ended with {t.stop_reason}: {t.failure}" for t in failed), "None of them failed.")


def count_sampled(groups: list[Group]) -> int:
    return sum(s.num_action_tokens for group in groups for t in group.trajectories for s in t.segments)

"""The serial loop: explore, store, credit, learn, publish, one after another. The reference for all other loops.

Read top to bottom, it is the whole library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnwise.experience.build import build_experiences
from turnwise.infra.threads import unbroken
from turnwise.infra.wait_tracking import computing
from turnwise.learn.checkpoint import digest_policy
from turnwise.loop.components import ExploreParts, LearnParts, TrainParts
from turnwise.loop.step import STAGES, Explored, Stages, explore_on_record, is_written_anew, refuse_to_starve
from turnwise.protocols import Buffer
from turnwise.report.metrics import Stopwatch, group_metrics
from turnwise.report.token_log_codec import LearntBatch
from turnwise.types import Experience, Group, Metrics, StepReport


async def train_serial(
    parts: TrainParts,
    watch: Stopwatch,
    *,
    start_step: int,
    on_step: Callable[[LoopStep], Awaitable[None]],
    stages: Stages = STAGES,
) -> None:
    """Run from `start_step` steps done to `learn.steps`; `stages` is what a step is made of."""
    settings = parts.settings

    async def update(step: int, explored: Explored, experiences: Sequence[Experience]) -> None:
        with watch.section("learn"):
            learnt = learn_from(parts, experiences, stages)
        if step % settings.sync.interval == 0:
            with watch.section("sync"):
                await parts.channel.publish(parts.take_weights(), learnt.policy_version)
        done = describe_step(parts.buffer, step, explored, learnt, tasks=parts.tasks.state())
        await on_step(replace(done, metrics={**done.metrics, **parts.sync_metrics()}))

    num_starved = 0
    for step in range(start_step + 1, settings.learn.steps + 1):
        env_s = env_seconds(parts)
        with watch.section("rollout"):
            explored = await explore_on_record(parts, step, stages=stages)
            parts.buffer.add(build_experiences(explored.kept))
        watch.move("rollout", "env", env_seconds(parts) - env_s)
        with watch.section("learn"):
            experiences = parts.buffer.take(step)
        num_starved = 0 if experiences else num_starved + 1
        refuse_to_starve(explored, step, num_starved)
        # Whoever interrupts a run finds it between two steps.
        await unbroken(update(step, explored, experiences))


@computing("an update of the policy")
def learn_from(parts: LearnParts, experiences: Sequence[Experience], stages: Stages = STAGES) -> Learnt:
    """Merge, shape, credit, pack, update; with nothing to learn from, the policy stays as it is."""
    if not experiences:
        return _nothing_learnt(parts)
    audit = parts.audit
    if audit is not None and not (experiences := audit.admit(experiences)):
        return _nothing_learnt(parts)
    shaped = stages.shape_rewards(parts, experiences)
    annotations = parts.learner.annotate(shaped)
    samples = stages.compute_advantages(parts, shaped, annotations)
    batch = stages.pack(samples)
    if audit is not None and not is_written_anew(stages, "shape_rewards", "compute_advantages", "pack"):
        audit.check_batch(experiences, samples, batch, annotations)
    parts.on_batch(parts.learner.policy_version + 1, batch)
    report = stages.rl_step(parts, batch)
    if audit is not None:
        audit.check_update(samples, batch, report)
    num_tokens = sum(e.segment.num_action_tokens for e in experiences)
    return Learnt(
        experiences=experiences,
        report=report,
        tokens_trained=num_tokens * parts.settings.learn.epochs,
        batch=LearntBatch.of(samples, batch, report, annotated=shaped, annotations=annotations),
        audited={} if audit is None else {**audit.metrics(), **_digest_weights(parts)},
    )


def _digest_weights(parts: LearnParts) -> Metrics:
    """By which a replay sees whether it has made the same weights; nothing where they are in another process."""
    digest = digest_policy(parts.learner)
    return {} if digest is None else {"audit/weights": float(digest)}


def _nothing_learnt(parts: LearnParts) -> Learnt:
    unchanged = StepReport(policy_version=parts.learner.policy_version, metrics={})
    audited = {} if parts.audit is None else parts.audit.metrics()
    return Learnt(experiences=[], report=unchanged, tokens_trained=0, batch=None, audited=audited)


# --- what a step did --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What one update learnt from, and what it did."""

    experiences: Sequence[Experience]
    """As they were taken from the buffer."""
    report: StepReport
    tokens_trained: int
    batch: LearntBatch | None
    """What was trained, token for token; None where there was nothing."""
    audited: Metrics = field(default_factory=dict)
    """What the audit said about it."""

    @property
    def policy_version(self) -> int:
        return self.report.policy_version

    @property
    def metrics(self) -> Metrics:
        return {**self.report.metrics, **self.audited, **_unmerged(self.experiences), **self._staleness()}

    def _staleness(self) -> Metrics:
        """How many updates old the weights were that sampled what was learnt from."""
        ages = [self.policy_version - 1 - experience.policy_version for experience in self.experiences]
        return {"sync/staleness_mean": sum(ages) / len(ages), "sync/staleness_max": float(max(ages))} if ages else {}


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
    learnt: Learnt


def describe_step(
    buffer: Buffer, step: int, explored: Explored, learnt: Learnt, *, tasks: Mapping[str, Any]
) -> LoopStep:
    """What a step did, for whoever reports it."""
    return LoopStep(
        step=step,
        groups=explored.played,
        metrics={
            **group_metrics(explored.played),
            **explored.metrics,
            **learnt.metrics,
            "buffer/experiences_left": float(len(buffer)),
            "buffer/experiences_dropped": float(buffer.num_dropped),
        },
        tokens_sampled=explored.tokens_sampled,
        tokens_trained=learnt.tokens_trained,
        tasks=tasks,
        learnt=learnt,
    )


def env_seconds(parts: ExploreParts) -> float:
    proxies = [parts.proxy] if parts.greedy_proxy is None else [parts.proxy, parts.greedy_proxy]
    return sum(proxy.env_seconds for proxy in proxies)


def _unmerged(experiences: Sequence[Experience]) -> Metrics:
    """What `learn/rows` and `learn/tokens` would be if no experience extended another."""
    if not experiences:
        return {}
    return {
        "learn/unmerged_rows": float(len(experiences)),
        "learn/unmerged_tokens": float(sum(len(e.segment) for e in experiences)),
    }

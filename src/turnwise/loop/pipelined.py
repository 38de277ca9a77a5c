"""Pipelined training loop: rollouts begin ahead of the updates that use them, and both run at the same time.

It is the serial loop with rollouts begun early: update n uses rollout n, and `sync.max_staleness` bounds how early.
With 0 it is the serial loop, number for number. Rollouts are tasks of the event loop; an update runs in a thread, so
that episodes continue meanwhile. A failure on either side ends both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.experience.build import build_experiences
from turnwise.hooks import Hook, RolloutResult
from turnwise.infra.threads import end_tasks, finish_before_cancel
from turnwise.loop.components import Collectors, ExplorerComponents, TrainComponents
from turnwise.loop.serial import update_policy
from turnwise.loop.step import STAGES, EmptyBatchGuard, OnStep, Stages, collect, describe_step
from turnwise.protocols import PolicyVersion
from turnwise.report.metrics import Stopwatch
from turnwise.sync.sync_schedule import ExplorerSync, Notifier, TrainerSync, list_policies
from turnwise.types import Experience, Metrics


async def train_pipelined(
    components: TrainComponents, watch: Stopwatch, *, start_step: int, on_step: OnStep, stages: Stages = STAGES
) -> None:
    """Run steps `start_step + 1` to `learn.steps`."""
    settings, trainer, rollout_engine = components.settings, components.trainer, components.explorer.rollout.engine
    bell, guard = Notifier(), EmptyBatchGuard()
    rules, store = list_policies(settings.sync), components.open_weight_store(bell.ring)
    start = PolicyVersion(start_step, trainer.learner.policy_version)
    if (newest := store.newest()) is not None and newest > start:
        # Left by a process that was killed: those updates are made again, and no rollout may have their weights early.
        store.post(start, trainer.take_weights())
    publisher = components.explorer.rollout.publisher
    explorer = Explorer(
        components.explorer,
        ExplorerSync(rules, store, publisher, bell, start=start, timeout_s=settings.sync.timeout_s),
        bell,
        max_running=(rules.max_staleness or 0) + 1,
        hooks=components.hooks,
        stages=stages,
    )
    trainer_end = TrainerSync(rules, store, trainer.take_weights, start=start)

    async def update(
        step: int, rollout: RolloutResult, experiences: Sequence[Experience], overlap: Metrics, *, waited_s: float
    ) -> None:
        with watch.section("learn"):
            result = await asyncio.to_thread(update_policy, trainer, experiences, components.hooks, stages)
        overlap = {**overlap, "sync/explorer_wait_s": explorer.end.waited_s - waited_s}
        done = describe_step(step, rollout, result, components)
        state = explorer.task_state_before(step + 1)
        await on_step(replace(done, metrics={**done.metrics, **overlap}, task_state=state))
        # Only now: with no staleness allowed, the next rollout must not share the engine with an evaluation.
        with watch.section("sync"):
            trainer_end.finish_update(PolicyVersion(step, result.policy_version))

    explorer.start(start_step + 1, settings.learn.steps)
    try:
        for step in range(start_step + 1, settings.learn.steps + 1):
            env_s, waits = explorer.env_seconds, (explorer.end.waited_s, watch.seconds("rollout"))
            with watch.section("rollout"):
                rollout = await explorer.wait_for(
                    step, who="the trainer", timeout_s=settings.sync.timeout_s, meanwhile=trainer_end.answer
                )
                components.buffer.add(build_experiences(rollout.kept))
            trainer_wait_s = watch.seconds("rollout") - waits[1]
            watch.move("rollout", "env", min(explorer.env_seconds - env_s, trainer_wait_s))
            lag = trainer.learner.policy_version - rollout_engine.policy_version
            with watch.section("learn"):
                experiences = components.buffer.take(step)
            guard.check(step, rollout, experiences)
            overlap = {"sync/version_lag": float(lag), "sync/trainer_wait_s": trainer_wait_s}
            # Interrupts take effect between two steps.
            await finish_before_cancel(update(step, rollout, experiences, overlap, waited_s=waits[0]))
    finally:
        await explorer.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollout:
    running: asyncio.Task[RolloutResult]
    task_state_before: Mapping[str, Any]
    """State of the task source when it began."""


class Explorer:
    """Begins rollouts as soon as they are admitted, several at once, and returns them in order.

    Consumes: weights and admissions of its end. Produces: one `RolloutResult` per rollout. Waits for: the trainer, if
    `sync.max_staleness` says so.
    """

    def __init__(
        self,
        components: ExplorerComponents,
        end: ExplorerSync,
        bell: Notifier,
        *,
        max_running: int,
        hooks: Hook,
        stages: Stages = STAGES,
    ) -> None:
        """At most `max_running` rollouts are begun and not yet returned."""
        self.end = end
        self.num_empty = 0
        """Rollouts without anything to train on; they do not count as ahead of the trainer."""
        self._components = components
        self._bell = bell
        self._max_running = max_running
        self._hooks = hooks
        self._stages = stages
        self._collectors = [components.collectors]
        """For each rollout that may run at the same time, with environments of its own."""
        self._free = [components.collectors]
        self._rollouts: dict[int, _Rollout] = {}
        self._admitting: asyncio.Task[None] | None = None

    @property
    def env_seconds(self) -> float:
        return sum(collectors.env_seconds for collectors in self._collectors)

    def start(self, first: int, last: int) -> None:
        """Begin rollouts `first` to `last`."""
        self._admitting = asyncio.create_task(self._admit_all(first, last))
        self._admitting.add_done_callback(lambda _: self._bell.ring())

    async def wait_for(
        self, number: int, *, who: str, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> RolloutResult:
        """Return rollout `number`; `meanwhile` is called again and again until it is there."""

        def is_over() -> bool:
            meanwhile()
            return self._has_failed() or (number in self._rollouts and self._rollouts[number].running.done())

        await self._bell.wait_until(
            is_over,
            who=who,
            reason=f"rollout {number} ({len(self._rollouts)} are running)",
            timeout_s=timeout_s,
        )
        if self._has_failed():
            assert self._admitting is not None
            self._admitting.result()
        rollout = self._rollouts.pop(number).running.result()
        self._bell.ring()
        return rollout

    def task_state_before(self, number: int) -> Mapping[str, Any]:
        """State of the task source before rollout `number`, so that a resumed run plays the same tasks."""
        if number in self._rollouts:
            return self._rollouts[number].task_state_before
        return self._components.tasks.state()

    async def stop(self) -> None:
        """End what is still running."""
        assert self._admitting is not None
        await end_tasks([self._admitting, *(rollout.running for rollout in self._rollouts.values())])
        for collectors in self._collectors[1:]:
            collectors.close()

    def _has_failed(self) -> bool:
        admitting = self._admitting
        return admitting is not None and admitting.done() and admitting.exception() is not None

    async def _admit_all(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            await self._bell.wait_until(
                lambda: len(self._rollouts) < self._max_running,
                who="the explorer",
                reason=f"one of {self._max_running} rollouts to end before rollout {number}",
                timeout_s=self._components.settings.sync.timeout_s,
            )
            await self.end.admit(number - self.num_empty)
            state = self._components.tasks.state()
            running = asyncio.create_task(self._collect(number))
            running.add_done_callback(lambda _: self._bell.ring())
            self._rollouts[number] = _Rollout(running=running, task_state_before=state)
            # Its tasks are taken before the next rollout takes its own.
            await asyncio.sleep(0)

    async def _collect(self, number: int) -> RolloutResult:
        collectors = self._free.pop() if self._free else self._open_collectors()
        try:
            return await collect(replace(self._components, collectors=collectors), number, self._hooks, self._stages)
        finally:
            self._free.append(collectors)

    def _open_collectors(self) -> Collectors:
        collectors = self._components.open_collectors()
        self._collectors.append(collectors)
        return collectors

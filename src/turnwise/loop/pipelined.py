"""The pipelined loop: rollouts begin ahead of the updates that learn from them, and both run at the same time.

It is the serial loop with rollouts begun early: update n learns from rollout n, and how early is bounded by
`sync.max_staleness`. With 0 it is the serial loop, number for number. Rollouts are tasks of the event loop; an update
runs in a thread, so that episodes go on meanwhile. Whatever fails on either side ends both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from turnwise.experience.build import build_experiences
from turnwise.infra.threads import end_tasks, unbroken
from turnwise.loop.components import ExploreParts, TrainParts, close_part
from turnwise.loop.serial import LoopStep, describe_step, env_seconds, learn_from
from turnwise.loop.step import STAGES, Explored, Stages, explore, explore_on_record, refuse_to_starve
from turnwise.protocols import PolicyMark
from turnwise.report.metrics import Stopwatch
from turnwise.sync.sync_schedule import Bell, ExplorerEnd, TrainerEnd, rules_of
from turnwise.types import Experience, Metrics


async def train_pipelined(
    parts: TrainParts,
    watch: Stopwatch,
    *,
    start_step: int,
    on_step: Callable[[LoopStep], Awaitable[None]],
    stages: Stages = STAGES,
) -> None:
    """Run from `start_step` steps done to `learn.steps`; `stages` is what a step is made of."""
    settings, bell = parts.settings, Bell()
    rules, mailbox = rules_of(settings.sync), parts.open_mailbox(bell.ring)
    start = PolicyMark(start_step, parts.learner.policy_version)
    if (newest := mailbox.newest()) is not None and newest > start:
        # Left by a process that was cut short: those updates are made again, and nobody may have their weights early.
        mailbox.post(start, parts.take_weights())
    explorer = Explorer(
        parts,
        ExplorerEnd(rules, mailbox, parts.channel, bell, start=start, timeout_s=settings.sync.timeout_s),
        bell,
        max_running=(rules.max_staleness or 0) + 1,
        play=partial(explore_on_record, stages=stages),
    )
    trainer_end = TrainerEnd(rules, mailbox, parts.take_weights, start=start)

    async def update(
        step: int, explored: Explored, experiences: Sequence[Experience], overlap: Metrics, *, waited_s: float
    ) -> None:
        with watch.section("learn"):
            learnt = await asyncio.to_thread(learn_from, parts, experiences, stages)
        overlap = {**overlap, "sync/explorer_wait_s": explorer.end.waited_s - waited_s}
        done = describe_step(parts.buffer, step, explored, learnt, tasks=explorer.tasks_before(step + 1))
        await on_step(replace(done, metrics={**done.metrics, **overlap, **parts.sync_metrics()}))
        # Only now: with no staleness allowed, the next rollout must not share the engine with an evaluation.
        with watch.section("sync"):
            trainer_end.finish_update(PolicyMark(step, learnt.policy_version))

    explorer.start(start_step + 1, settings.learn.steps)
    num_starved = 0
    try:
        for step in range(start_step + 1, settings.learn.steps + 1):
            env_s, waits = explorer.env_seconds, (explorer.end.waited_s, watch.seconds("rollout"))
            with watch.section("rollout"):
                explored = await explorer.wait_for(
                    step, who="the trainer", timeout_s=settings.sync.timeout_s, meanwhile=trainer_end.answer
                )
                parts.buffer.add(build_experiences(explored.kept))
            trainer_wait_s = watch.seconds("rollout") - waits[1]
            watch.move("rollout", "env", min(explorer.env_seconds - env_s, trainer_wait_s))
            lag = parts.learner.policy_version - parts.engine.policy_version
            with watch.section("learn"):
                experiences = parts.buffer.take(step)
            num_starved = 0 if experiences else num_starved + 1
            refuse_to_starve(explored, step, num_starved)
            overlap = {"sync/version_lag": float(lag), "sync/trainer_wait_s": trainer_wait_s}
            # Whoever interrupts a run finds it between two steps.
            await unbroken(update(step, explored, experiences, overlap, waited_s=waits[0]))
    finally:
        await explorer.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollout:
    playing: asyncio.Task[Explored]
    tasks_before: Mapping[str, Any]
    """Where the task source stood when it began."""


class Explorer:
    """Begins rollouts as soon as they are admitted, several at once, and hands them over in order.

    Consumes: weights and admissions of its end. Produces: one `Explored` per rollout. Waits for: the trainer, where
    `sync.max_staleness` says so.
    """

    def __init__(
        self,
        parts: ExploreParts,
        end: ExplorerEnd,
        bell: Bell,
        *,
        max_running: int,
        play: Callable[[ExploreParts, int], Awaitable[Explored]] | None = None,
    ) -> None:
        """`max_running` rollouts are begun and not yet handed over, at most; `play` plays one (default: `explore`)."""
        self.end = end
        self.num_empty = 0
        """Rollouts that brought nothing to learn from; they do not count as ahead of the trainer."""
        self._max_running = max_running
        self._explore = play or explore
        self._parts = parts
        self._bell = bell
        self._lanes = [parts]
        """The parts once for each rollout that may run at the same time, with environments of its own."""
        self._free = [parts]
        self._rollouts: dict[int, _Rollout] = {}
        self._admitting: asyncio.Task[None] | None = None

    @property
    def env_seconds(self) -> float:
        return sum(env_seconds(lane) for lane in self._lanes)

    def start(self, first: int, last: int) -> None:
        """Begin to play rollouts `first` to `last`."""
        self._admitting = asyncio.create_task(self._admit_all(first, last))
        self._admitting.add_done_callback(lambda _: self._bell.ring())

    async def wait_for(
        self, number: int, *, who: str, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> Explored:
        """What rollout `number` brought; `meanwhile` is called again and again until it is there."""

        def is_over() -> bool:
            meanwhile()
            return self._has_failed() or (number in self._rollouts and self._rollouts[number].playing.done())

        await self._bell.wait_until(
            is_over,
            who=who,
            reason=f"rollout {number} ({len(self._rollouts)} are running)",
            timeout_s=timeout_s,
        )
        if self._has_failed():
            assert self._admitting is not None
            self._admitting.result()
        explored = self._rollouts.pop(number).playing.result()
        self._bell.ring()
        return explored

    def tasks_before(self, number: int) -> Mapping[str, Any]:
        """Where the task source stood before rollout `number`, so that a resumed run plays it anew."""
        return self._rollouts[number].tasks_before if number in self._rollouts else self._parts.tasks.state()

    async def stop(self) -> None:
        """End what is still running; nobody waits for it any more."""
        assert self._admitting is not None
        await end_tasks([self._admitting, *(rollout.playing for rollout in self._rollouts.values())])
        for lane in self._lanes[1:]:
            for collector in (lane.proxy, lane.greedy_proxy):
                if collector is not None:
                    close_part(collector)

    def _has_failed(self) -> bool:
        admitting = self._admitting
        return admitting is not None and admitting.done() and admitting.exception() is not None

    async def _admit_all(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            await self._bell.wait_until(
                lambda: len(self._rollouts) < self._max_running,
                who="the explorer",
                reason=f"one of {self._max_running} rollouts to end before rollout {number}",
                timeout_s=self._parts.settings.sync.timeout_s,
            )
            await self.end.admit(number - self.num_empty)
            tasks_before = self._parts.tasks.state()
            playing = asyncio.create_task(self._play(number))
            playing.add_done_callback(lambda _: self._bell.ring())
            self._rollouts[number] = _Rollout(playing=playing, tasks_before=tasks_before)
            # Its tasks are taken before the next rollout takes its own.
            await asyncio.sleep(0)

    async def _play(self, number: int) -> Explored:
        lane = self._free.pop() if self._free else self._new_lane()
        try:
            return await self._explore(lane, number)
        finally:
            self._free.append(lane)

    def _new_lane(self) -> ExploreParts:
        proxy, greedy_proxy = self._parts.new_proxies()
        lane = replace(self._parts, proxy=proxy, greedy_proxy=greedy_proxy)
        self._lanes.append(lane)
        return lane

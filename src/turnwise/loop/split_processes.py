"""The explorer and the trainer as processes of their own, over one run directory.

They share a durable buffer, weights as files, and a record of who is at work; neither needs the other to run, and one
that is killed is started again with the same command. The explorer writes down episodes as they end, and stores groups
as they are complete; started again, it plays what is missing. The trainer learns from what is stored, answers requests
meanwhile, and ends when the explorer has ended and less than a batch is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from turnwise.config.schema import TurnwiseSettings
from turnwise.config.schema_learn import NoFilter
from turnwise.experience.build import build_experiences
from turnwise.experience.codec import read_experiences
from turnwise.hooks import Hook, Hooks, RolloutResult
from turnwise.infra.threads import finish_before_cancel
from turnwise.loop.build import open_mailbox
from turnwise.loop.components import ExplorerComponents, TrainerComponents
from turnwise.loop.pipelined import Explorer
from turnwise.loop.serial import update_policy
from turnwise.loop.step import STAGES, OnStep, Stages, describe_update, max_episodes
from turnwise.protocols import Buffer, Mailbox, PolicyVersion
from turnwise.report.metrics import Stopwatch
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import TrajectoryJournal
from turnwise.sync.role_locks import RoleLock, RoleProgress, role_lock
from turnwise.sync.sync_schedule import ExplorerSync, Notifier, TrainerSync, list_policies
from turnwise.types import Group, Trajectory, TrajectoryId

_RUNNING_UNBOUNDED = 2
"""Rollouts at once where no staleness bounds them: the stragglers of one beside the start of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the two processes of a run share beside the buffer."""

    bell: Notifier
    mailbox: Mailbox
    explorer: RoleLock
    trainer: RoleLock
    unfinished: Path

    @classmethod
    def open(cls, settings: TurnwiseSettings, directory: RunDirectory) -> Shared:
        bell = Notifier()
        return cls(
            bell=bell,
            mailbox=open_mailbox(settings, directory.path, bell.ring),
            explorer=role_lock(directory.path, "explorer"),
            trainer=role_lock(directory.path, "trainer"),
            unfinished=directory.unfinished,
        )

    def journal(self, rollout: int) -> TrajectoryJournal:
        return TrajectoryJournal(self.unfinished, rollout)


# --- the trainer -----------------------------------------------------------------------------------------------------


async def train_from_buffer(
    trainer: TrainerComponents,
    buffer: Buffer,
    watch: Stopwatch,
    *,
    start_step: int,
    on_step: OnStep,
    shared: Shared,
    hooks: Hook,
    stages: Stages = STAGES,
) -> None:
    """Train on what is stored, up to `learn.steps`, until the explorer has ended and no full batch is left."""
    settings, learner = trainer.settings, trainer.learner
    if settings.buffer.offline is not None:
        buffer.add(read_experiences(Path(settings.buffer.offline)))
    start = PolicyVersion(start_step, learner.policy_version)
    end = TrainerSync(list_policies(settings.sync), shared.mailbox, trainer.take_weights, start=start)
    if shared.mailbox.newest() != start:
        # Also if newer ones are there: they were left by a process that was killed, and are made again.
        shared.mailbox.post(start, trainer.take_weights())
    shared.trainer.write(RoleProgress(step=start_step))
    done = start
    for step in range(start_step + 1, settings.learn.steps + 1):
        waited_until_s = watch.seconds("rollout")
        with watch.section("rollout"):
            is_batch = await _wait_for_batch(settings, buffer, shared, end, step, is_first=step == start_step + 1)
        if not is_batch:
            break
        with watch.section("learn"):
            result = update_policy(trainer, buffer.take(step), hooks, stages)
        done = PolicyVersion(step, result.policy_version)
        with watch.section("sync"):
            end.finish_update(done)
        described = describe_update(step, RolloutResult(played=[], kept=[]), result, trainer, buffer, hooks, {})
        waited_s = {"sync/trainer_wait_s": watch.seconds("rollout") - waited_until_s}
        await finish_before_cancel(on_step(replace(described, metrics={**described.metrics, **waited_s})))
        shared.trainer.write(RoleProgress(step=step))
    shared.mailbox.post(done, trainer.take_weights())
    shared.trainer.write(RoleProgress(step=done.step, has_ended=done.step >= settings.learn.steps))


async def _wait_for_batch(
    settings: TurnwiseSettings, buffer: Buffer, shared: Shared, end: TrainerSync, step: int, *, is_first: bool
) -> bool:
    """Return whether there is something to train on; False: there will be no more."""

    def is_all_there() -> bool:
        return settings.buffer.offline is not None or _has_ended(shared.explorer)

    def may_take() -> bool:
        """A full batch; or what there is, if the explorer waits for this update or nothing else will come."""
        is_last_chance = end.is_asked_for_more() or (is_first and is_all_there())
        return buffer.is_ready(step) or (is_last_chance and len(buffer) > 0)

    def is_decided() -> bool:
        end.answer()
        return may_take() or is_all_there()

    await shared.bell.wait_until(
        is_decided,
        who="the trainer",
        reason=f"a batch for update {step} (there are {len(buffer)} experiences, and the explorer "
        f"{'is at work' if shared.explorer.is_taken() else 'is not running'})",
        timeout_s=settings.sync.timeout_s,
    )
    return may_take()


def _has_ended(place: RoleLock) -> bool:
    return not place.is_taken() and place.read().has_ended


# --- the explorer ----------------------------------------------------------------------------------------------------


async def explore_alone(
    components: ExplorerComponents,
    buffer: Buffer,
    shared: Shared,
    *,
    start: PolicyVersion,
    hooks: Sequence[Hook],
    on_rollout: Callable[[int, RolloutResult], None],
) -> None:
    """Play up to `learn.steps` rollouts and store them; new weights are loaded as they appear."""
    settings, before = components.settings, shared.explorer.read()
    if before.tasks:
        components.tasks.restore(before.tasks)
    shared.explorer.write(replace(before, has_ended=False))
    # The process before this one may have been killed just after it recorded that it had stored this one.
    shared.journal(before.step).remove()
    rules, publisher = list_policies(settings.sync, is_alone=True), components.rollout.publisher
    explorer = Explorer(
        components,
        ExplorerSync(rules, shared.mailbox, publisher, shared.bell, start=start, timeout_s=settings.sync.timeout_s),
        shared.bell,
        max_running=_RUNNING_UNBOUNDED if rules.max_staleness is None else rules.max_staleness + 1,
        hooks=Hooks([_EpisodeStore(components, buffer, shared), *hooks]),
    )
    explorer.start(before.step + 1, settings.learn.steps)
    record = before
    try:
        for number in range(before.step + 1, settings.learn.steps + 1):
            # Except for one that is played: a process that was killed has left only its record to be written.
            if _has_ended(shared.trainer) and len(shared.journal(number).read()) < max_episodes(components):
                break
            # Twice: its admission may take that long, and then the rollout itself.
            rollout = await explorer.wait_for(number, who="the explorer", timeout_s=2 * settings.sync.timeout_s)
            experiences = build_experiences(rollout.kept)
            buffer.add(experiences)
            # A rollout without experiences makes no update possible, so none may wait for it.
            explorer.num_empty += not experiences
            record = RoleProgress(step=number, tasks=explorer.task_state_before(number + 1))
            shared.explorer.write(record)
            shared.journal(number).remove()
            on_rollout(number, rollout)
    finally:
        await explorer.stop()
    shared.explorer.write(replace(record, has_ended=True))


class _EpisodeStore(Hook):
    """Writes every episode to disk as it ends, and stores a complete group at once unless it is changed later."""

    def __init__(self, components: ExplorerComponents, buffer: Buffer, shared: Shared) -> None:
        settings = components.settings
        is_final = components.rollout.scoring is None and components.collectors.greedy is None
        is_final = is_final and isinstance(settings.reward.filter, NoFilter)
        self._group_size = settings.rollout.group_size if is_final else None
        self._buffer = buffer
        self._shared = shared
        self._groups: dict[int, _OpenGroups] = {}

    def load_episodes(self, step: int) -> Mapping[TrajectoryId, Trajectory]:
        known = self._shared.journal(step).read()
        self._groups[step] = _OpenGroups(self._buffer, self._group_size)
        for trajectory in known:
            self._groups[step].add(trajectory)
        return {trajectory.id: trajectory for trajectory in known}

    def on_episode(self, trajectory: Trajectory) -> None:
        self._shared.journal(trajectory.id.rollout).append(trajectory)
        self._groups[trajectory.id.rollout].add(trajectory)

    def on_rollout(self, step: int, rollout: RolloutResult) -> None:
        self._groups.pop(step).store_rest()


class _OpenGroups:
    """Groups trajectories as they end; a complete group goes into the buffer. Without a size none does."""

    def __init__(self, buffer: Buffer, group_size: int | None) -> None:
        self._buffer = buffer
        self._group_size = group_size
        self._ended: dict[str, list[Trajectory]] = {}

    def add(self, trajectory: Trajectory) -> None:
        siblings = self._ended.setdefault(trajectory.id.group, [])
        siblings.append(trajectory)
        if len(siblings) == self._group_size:
            self._store(self._ended.pop(trajectory.id.group))

    def store_rest(self) -> None:
        """A task source that learns from what was played may choose other tasks after a restart than before it."""
        if self._group_size is not None:
            for siblings in self._ended.values():
                self._store(siblings)

    def _store(self, siblings: list[Trajectory]) -> None:
        self._buffer.add(build_experiences(as_groups(siblings)))


def as_groups(trajectories: Sequence[Trajectory]) -> list[Group]:
    """Siblings together, in their order; a group may lack some."""
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: t.id):
        by_group.setdefault(trajectory.id.group, []).append(trajectory)
    return [Group(task=siblings[0].task, trajectories=tuple(siblings)) for siblings in by_group.values()]

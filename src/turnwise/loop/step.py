"""One step of training: its stages as methods that a trainer may override, and the rollout that all loops share.

Each stage takes what the one before returned: tasks become groups, groups get their rewards, experiences become rows,
rows get advantages, samples are packed, and a batch becomes an update. `Stages` holds no state of a run, because
rollouts may overlap.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from turnwise.config.schema_learn import NoFilter
from turnwise.credit.group import normalize_rewards
from turnwise.errors import LearnError
from turnwise.experience.build import merge_prefixes
from turnwise.hooks import Hook, RolloutResult, TrainStep, UpdateResult
from turnwise.infra.digests import seal_groups
from turnwise.infra.threads import count_abandoned
from turnwise.learn.pack import pack
from turnwise.loop.components import ExplorerComponents, RolloutComponents, TrainComponents, TrainerComponents
from turnwise.loop.evaluate import Evaluation, evaluate_policy
from turnwise.protocols import Buffer
from turnwise.report.metrics import group_metrics
from turnwise.rollout.scoring import filter_groups
from turnwise.types import (
    Annotations,
    Batch,
    Experience,
    Group,
    Metrics,
    Sample,
    StepReport,
    Task,
    Trajectory,
    TrajectoryId,
)


class Stages:
    """The stages of one step; subclasses override single stages."""

    async def rollout(
        self,
        explorer: ExplorerComponents,
        tasks: Sequence[Task],
        step: int,
        *,
        on_done: Callable[[Trajectory], None] | None = None,
        known: Mapping[TrajectoryId, Trajectory] = MappingProxyType({}),
    ) -> list[Group]:
        """Play every task `rollout.group_size` times.

        `on_done` is called with each episode as it ends; episodes in `known` are not played again.
        """
        collectors = explorer.collectors
        groups = await collectors.sampled.collect(tasks, rollout=step, on_done=on_done, known=known)
        if collectors.greedy is None:
            return groups
        greedy = await collectors.greedy.collect(tasks, rollout=step)
        return [replace(group, greedy=once.trajectories[0]) for group, once in zip(groups, greedy, strict=True)]

    def reward_model_step(self, groups: list[Group]) -> list[Group]:
        """Return the groups with the rewards that count; those of the environment or of `reward.judge` are there."""
        return groups

    def shape_rewards(self, trainer: TrainerComponents, experiences: Sequence[Experience]) -> list[Experience]:
        """Merge experiences that extend each other into one row, and apply `reward.normalisation`."""
        scale = trainer.settings.reward.normalisation
        return normalize_rewards(merge_prefixes(experiences), grouping=scale.grouping, method=scale.method)

    def compute_advantages(
        self, trainer: TrainerComponents, rows: Sequence[Experience], annotations: Annotations
    ) -> list[Sample]:
        """Apply the advantage estimator; values and reference log-probs are in `annotations`."""
        return trainer.estimator(rows, annotations)

    def pack(self, samples: Sequence[Sample]) -> Batch:
        """Return the arrays of one update."""
        return pack(samples)

    def rl_step(self, trainer: TrainerComponents, batch: Batch) -> StepReport:
        """Update the policy and, if there is one, the critic."""
        return trainer.learner.step(batch)

    async def evaluate(
        self, rollout: RolloutComponents, advance: Callable[[int, int], None] | None = None
    ) -> Evaluation:
        """Evaluate the policy on the held-out tasks."""
        return await evaluate_policy(rollout, advance)

    def overrides(self, *names: str) -> bool:
        """Whether a subclass replaces one of these stages."""
        return any(getattr(type(self), name) is not getattr(Stages, name) for name in names)


STAGES = Stages()
"""Those of a run without a trainer of its own."""

OnStep: TypeAlias = Callable[[TrainStep], Awaitable[None]]


# --- rollout ----------------------------------------------------------------------------------------------------------


async def collect(explorer: ExplorerComponents, step: int, hooks: Hook, stages: Stages = STAGES) -> RolloutResult:
    """Sample `rollout.groups` groups, and more while `reward.filter` rejects some; `hooks` receive each episode."""
    known = hooks.load_episodes(step)
    played: list[Group] = []
    kept: list[Group] = []
    for _ in range(_max_rounds(explorer)):
        tasks = explorer.tasks.take(explorer.num_groups, besides=[group.task for group in played])
        groups = await stages.rollout(explorer, tasks, step, on_done=hooks.on_episode, known=known)
        groups = stages.reward_model_step(groups)
        if stages.overrides("rollout", "reward_model_step"):
            groups = seal_groups(groups)
        played += groups
        kept += filter_groups(groups, explorer.settings.reward.filter)
        if len(kept) >= explorer.num_groups:
            break
    explorer.tasks.feedback(played)
    rollout = RolloutResult(played=played, kept=kept[: explorer.num_groups], num_abandoned_calls=count_abandoned())
    hooks.on_rollout(step, rollout)
    return rollout


def max_episodes(explorer: ExplorerComponents) -> int:
    """Episodes of one rollout, those of `mix` included; with a filter, if all its rounds are needed."""
    return _max_rounds(explorer) * explorer.num_groups * explorer.settings.rollout.group_size


def _max_rounds(explorer: ExplorerComponents) -> int:
    chosen = explorer.settings.reward.filter
    return 1 if isinstance(chosen, NoFilter) else chosen.max_rounds


_MAX_EMPTY = 5
"""Steps in a row without anything to train on."""


class EmptyBatchGuard:
    """Raise `LearnError` if steps produce no trainable experience: at once if all episodes failed, else after five."""

    def __init__(self) -> None:
        self._num_empty = 0

    def check(self, step: int, rollout: RolloutResult, experiences: Sequence[Experience]) -> None:
        self._num_empty = 0 if experiences else self._num_empty + 1
        if experiences:
            return
        if rollout.kept or all(trajectory.stop_reason.is_error for trajectory in rollout.trajectories):
            raise LearnError(f"no episode of step {step} can be learnt from. {_first_failure(rollout)}")
        if self._num_empty >= _MAX_EMPTY:
            raise LearnError(
                f"no group has passed reward.filter in {self._num_empty} steps in a row, up to step {step}. Its "
                "siblings earn the same. Loosen the filter, make tasks easier or harder, or raise rollout.group_size "
                "or temperature."
            )


def _first_failure(rollout: RolloutResult) -> str:
    """Why the first episode that failed did so."""
    failed = (t for t in rollout.trajectories if t.failure)
    return next((f"{t.id} ended with {t.stop_reason}: {t.failure}" for t in failed), "None of them failed.")


# --- description of a step --------------------------------------------------------------------------------------------


def describe_step(step: int, rollout: RolloutResult, update: UpdateResult, components: TrainComponents) -> TrainStep:
    """Return what a step did, with all metrics that are known at its end."""
    trainer, tasks = components.trainer, components.explorer.tasks
    return describe_update(step, rollout, update, trainer, components.buffer, components.hooks, tasks.state())


def describe_update(
    step: int,
    rollout: RolloutResult,
    update: UpdateResult,
    trainer: TrainerComponents,
    buffer: Buffer,
    hooks: Hook,
    task_state: Mapping[str, Any],
) -> TrainStep:
    """The same for a process that has no task source."""
    num_tokens = sum(e.segment.num_action_tokens for e in update.experiences)
    return TrainStep(
        step=step,
        rollout=rollout,
        update=update,
        metrics={
            **group_metrics(rollout.played),
            **rollout.metrics,
            **update.metrics,
            **hooks.metrics(),
            **_experience_metrics(update),
            "buffer/experiences_left": float(len(buffer)),
            "buffer/experiences_dropped": float(buffer.num_dropped),
            **({} if trainer.sync_check is None else trainer.sync_check.metrics()),
        },
        tokens_trained=num_tokens * trainer.settings.learn.epochs,
        task_state=task_state,
    )


def _experience_metrics(update: UpdateResult) -> Metrics:
    """Rows and tokens before merging, and how many updates old the weights were that sampled them."""
    if not update.experiences:
        return {}
    ages = [update.policy_version - 1 - experience.policy_version for experience in update.experiences]
    return {
        "learn/unmerged_rows": float(len(update.experiences)),
        "learn/unmerged_tokens": float(sum(len(e.segment) for e in update.experiences)),
        "sync/staleness_mean": sum(ages) / len(ages),
        "sync/staleness_max": float(max(ages)),
    }

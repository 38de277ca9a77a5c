"""Listeners of a run: `Hook` for our own, `Callback` for the user's, and the results that they receive.

A loop calls the hooks of its run at fixed points: while episodes finish, around an update, and after a step.
`run/training_run.py` makes the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from turnwise.config.component import CALLBACKS
from turnwise.errors import ConfigError, LearnError
from turnwise.types import (
    Annotations,
    Batch,
    Experience,
    Group,
    Metrics,
    Sample,
    StepReport,
    Trajectory,
    TrajectoryId,
)

LogValue: TypeAlias = float | NDArray[np.generic] | Sequence[float] | str
"""A number goes to every sink; several numbers are a histogram and a text is a text, in TensorBoard."""


# --- results of a step ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """The groups of one step."""

    played: Sequence[Group]
    kept: Sequence[Group]
    """Those that pass `reward.filter`."""
    num_abandoned_calls: int = 0
    """Calls of environments and programs that still run although their episodes are over."""

    @property
    def trajectories(self) -> list[Trajectory]:
        """All episodes but the greedy ones."""
        return [trajectory for group in self.played for trajectory in group.trajectories]

    @property
    def tokens_sampled(self) -> int:
        greedy = [group.greedy for group in self.played if group.greedy is not None]
        return sum(segment.num_action_tokens for t in (*self.trajectories, *greedy) for segment in t.segments)

    @property
    def metrics(self) -> Metrics:
        return {
            "rollout/groups_played": float(len(self.played)),
            "rollout/groups_kept": float(len(self.kept)),
            "rollout/left_behind": float(self.num_abandoned_calls),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateInputs:
    """Everything an update is made from, in the order in which it was made."""

    experiences: Sequence[Experience]
    """As they were taken from the buffer and accepted by the hooks."""
    rows: Sequence[Experience]
    """After experiences that extend each other were merged and rewards were normalized."""
    annotations: Annotations
    samples: Sequence[Sample]
    batch: Batch
    is_default: bool
    """False if a trainer overrides a stage between buffer and batch: then the audit does not recompute it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What one update did; `inputs` is None if there was nothing to train on."""

    policy_version: int
    metrics: Metrics
    inputs: UpdateInputs | None = None
    report: StepReport | None = None

    @property
    def experiences(self) -> Sequence[Experience]:
        return () if self.inputs is None else self.inputs.experiences


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """One finished step of a loop."""

    step: int
    """Counted from 1."""
    rollout: RolloutResult
    update: UpdateResult
    metrics: Metrics
    tokens_trained: int
    task_state: Mapping[str, Any]
    """State of the task source before the next rollout, for resume."""


# --- hooks ------------------------------------------------------------------------------------------------------------


class Hook:
    """Listener of a run. All methods have empty defaults; an exception ends the run."""

    def load_episodes(self, step: int) -> Mapping[TrajectoryId, Trajectory]:
        """Return finished episodes of this rollout that are on disk; they are not played again."""
        return {}

    def on_episode(self, trajectory: Trajectory) -> None:
        """Called for every episode as it ends."""

    def on_rollout(self, step: int, rollout: RolloutResult) -> None:
        """Called with all groups of a step, before any of them is trained on."""

    def filter_experiences(self, experiences: Sequence[Experience]) -> Sequence[Experience]:
        """Return the experiences that may be trained on."""
        return experiences

    def on_batch(self, inputs: UpdateInputs) -> None:
        """Called before an update."""

    def on_update(self, inputs: UpdateInputs, report: StepReport) -> None:
        """Called after an update, before its weights are published."""

    def metrics(self) -> Metrics:
        """Return what this hook measured about the newest update."""
        return {}

    async def compute_metrics(self, step: TrainStep, metrics: Metrics) -> Mapping[str, LogValue]:
        """Return more metrics of the step, such as an evaluation; `metrics` holds those of the hooks before."""
        return {}

    async def on_step(self, step: TrainStep, metrics: Mapping[str, LogValue]) -> None:
        """Act on the complete metrics: write, stop, save."""

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Called with the episodes of an evaluation."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Called when a checkpoint is complete on disk."""

    def close(self) -> None:
        """Called when the run has ended, successfully or not."""


class Hooks(Hook):
    """Several hooks as one, called in order."""

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self.hooks = tuple(hooks)

    def load_episodes(self, step: int) -> Mapping[TrajectoryId, Trajectory]:
        return {name: played for hook in self.hooks for name, played in hook.load_episodes(step).items()}

    def on_episode(self, trajectory: Trajectory) -> None:
        for hook in self.hooks:
            hook.on_episode(trajectory)

    def on_rollout(self, step: int, rollout: RolloutResult) -> None:
        for hook in self.hooks:
            hook.on_rollout(step, rollout)

    def filter_experiences(self, experiences: Sequence[Experience]) -> Sequence[Experience]:
        for hook in self.hooks:
            experiences = hook.filter_experiences(experiences)
        return experiences

    def on_batch(self, inputs: UpdateInputs) -> None:
        for hook in self.hooks:
            hook.on_batch(inputs)

    def on_update(self, inputs: UpdateInputs, report: StepReport) -> None:
        for hook in self.hooks:
            hook.on_update(inputs, report)

    def metrics(self) -> Metrics:
        return {name: value for hook in self.hooks for name, value in hook.metrics().items()}

    async def compute_metrics(self, step: TrainStep, metrics: Metrics) -> Mapping[str, LogValue]:
        """Return `metrics` and what every hook adds to them."""
        complete: dict[str, LogValue] = dict(metrics)
        for hook in self.hooks:
            complete.update(await hook.compute_metrics(step, select_numbers(complete)))
        return complete

    async def on_step(self, step: TrainStep, metrics: Mapping[str, LogValue]) -> None:
        for hook in self.hooks:
            await hook.on_step(step, metrics)

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        for hook in self.hooks:
            hook.on_eval(step, trajectories)

    def on_checkpoint(self, step: int, folder: Path) -> None:
        for hook in self.hooks:
            hook.on_checkpoint(step, folder)

    def close(self) -> None:
        for hook in self.hooks:
            hook.close()


# --- callbacks of the user --------------------------------------------------------------------------------------------


class Callback:
    """Base class of callbacks: override what you need. Steps are counted from 1; 0 is before the first update.

    Callbacks cannot change a run; what they are given must stay as it is. Values that `on_step` returns are logged with
    the built-in metrics. An exception ends the run; the command line shows its file and line.
    """

    def on_rollout(self, step: int, groups: Sequence[Group]) -> None:
        """Called with the episodes of a step before they are trained on; not if another process explores."""

    def on_batch(self, update: int, batch: Batch) -> None:
        """Called with the arrays of an update before it is made; `update` is the policy version that it will make."""

    def on_step(self, step: int, metrics: Metrics) -> Mapping[str, LogValue] | None:
        """Called with all metrics of a step; the values that it returns are logged with them, under new names."""

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Called with the episodes of an evaluation of the policy after a step."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Called when a checkpoint is complete on disk; the policy is in `folder / "policy"`."""

    def close(self) -> None:
        """Called when the run has ended, successfully or not."""


class CallbackHook(Hook):
    """Calls the user's callbacks."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        self._num_updates = 0

    def start(self, policy_version: int) -> None:
        """Count updates from this policy version."""
        self._num_updates = policy_version

    def on_rollout(self, step: int, rollout: RolloutResult) -> None:
        for callback in self._callbacks:
            callback.on_rollout(step, rollout.played)

    def on_batch(self, inputs: UpdateInputs) -> None:
        for callback in self._callbacks:
            callback.on_batch(self._num_updates + 1, inputs.batch)

    def on_update(self, inputs: UpdateInputs, report: StepReport) -> None:
        self._num_updates = report.policy_version

    async def compute_metrics(self, step: TrainStep, metrics: Metrics) -> Mapping[str, LogValue]:
        """Return what the callbacks add; a name that is in use is an error."""
        added: dict[str, LogValue] = {}
        for callback in self._callbacks:
            values = callback.on_step(step.step, metrics) or {}
            if taken := [name for name in values if name in metrics or name in added]:
                raise LearnError(
                    f"callback {type(callback).__name__}.on_step returned '{taken[0]}', which is a metric already; "
                    "choose another name."
                )
            added |= values
        return added

    def on_eval(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        for callback in self._callbacks:
            callback.on_eval(step, trajectories)

    def on_checkpoint(self, step: int, folder: Path) -> None:
        for callback in self._callbacks:
            callback.on_checkpoint(step, folder)

    def close(self) -> None:
        for callback in self._callbacks:
            callback.close()


def open_callbacks(names: Sequence[str], given: Sequence[Callback] = ()) -> CallbackHook:
    """Open the callbacks that `report.callbacks` names, and add those that were given from Python."""
    opened: list[Callback] = []
    for name in names:
        callback = cast("type[object]", CALLBACKS.get_target(name))()
        if not isinstance(callback, Callback):
            raise ConfigError(f"report.callbacks: '{name}' is no turnwise.Callback; expected a subclass of it.")
        opened.append(callback)
    return CallbackHook([*opened, *given])


def select_numbers(values: Mapping[str, LogValue]) -> dict[str, float]:
    """Return the single numbers among some values."""
    return {
        name: float(cast(float, value))
        for name, value in values.items()
        if not isinstance(value, str) and np.ndim(value) == 0
    }


def sort_log_values(values: Mapping[str, LogValue]) -> tuple[dict[str, float], dict[str, object], dict[str, str]]:
    """Return numbers, histograms and texts."""
    histograms = {n: value for n, value in values.items() if not isinstance(value, str) and np.ndim(value) > 0}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return select_numbers(values), dict(histograms), texts

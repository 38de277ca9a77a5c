"""Components of a run, by what they are for: rollouts, exploring, updates, and all of it together.

Protocols only; `build.py` opens them. Each class holds the one before it: nothing is copied. A process has what it
needs: an evaluation `RolloutComponents`, an explorer `ExplorerComponents`, a trainer `TrainerComponents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwise.config.schema import TurnwiseSettings
from turnwise.hooks import Hooks
from turnwise.protocols import (
    Buffer,
    Channel,
    ChatTemplate,
    Collector,
    CreditRule,
    Engine,
    Learner,
    Mailbox,
    TaskSource,
    Weights,
)
from turnwise.rollout.scoring import RewardScoring
from turnwise.sync.sync_check import Probe
from turnwise.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def close_component(component: Learner | Buffer | Collector) -> None:
    """End the processes and files of a component that has a `close`."""
    close = getattr(component, "close", None)
    if close is not None:
        close()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutComponents:
    """What an evaluation needs."""

    settings: TurnwiseSettings
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    engine: Engine
    publisher: Channel
    """Sends weights to the engine."""
    scoring: RewardScoring | None
    """None if the environment gives all rewards."""
    eval_collector: Collector
    eval_tasks: Sequence[Task]

    async def close(self) -> None:
        """End the engine and the environments."""
        try:
            await self.engine.close()
        finally:
            close_component(self.eval_collector)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectors:
    """What one running rollout occupies; the pipelined loop opens several."""

    sampled: Collector
    greedy: Collector | None
    """Plays each task once greedily, for estimators that compare with it."""

    @property
    def env_seconds(self) -> float:
        """Time spent in environments so far."""
        return self.sampled.env_seconds + (0.0 if self.greedy is None else self.greedy.env_seconds)

    def close(self) -> None:
        close_component(self.sampled)
        if self.greedy is not None:
            close_component(self.greedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerComponents:
    """What generates rollouts."""

    rollout: RolloutComponents
    tasks: TaskSource
    num_groups: int
    """Of one rollout, those of `mix` included."""
    collectors: Collectors
    open_collectors: Callable[[], Collectors]
    """Opens more of them, for a rollout beside a running one."""

    @property
    def settings(self) -> TurnwiseSettings:
        return self.rollout.settings

    async def close(self) -> None:
        try:
            await self.rollout.close()
        finally:
            self.collectors.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerComponents:
    """What turns experiences into updates."""

    settings: TurnwiseSettings
    learner: Learner
    estimator: CreditRule
    sync_check: Probe | None = None
    """Compares learner and engine after every sync if the engine is elsewhere."""

    def take_weights(self) -> Weights:
        """Return the learner's weights, to be published."""
        return self.learner.weights() if self.sync_check is None else self.sync_check.take_weights()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainComponents:
    """Everything a loop connects."""

    settings: TurnwiseSettings
    explorer: ExplorerComponents
    trainer: TrainerComponents
    buffer: Buffer
    open_weight_store: Callable[[Callable[[], None]], Mailbox]
    """Opens the way of weights from trainer to explorer; its argument wakes what waits for them."""
    hooks: Hooks

    async def publish(self, policy_version: int) -> int:
        """Send the learner's weights to the engine; return the version that it serves."""
        return await self.explorer.rollout.publisher.publish(self.trainer.take_weights(), policy_version)

    async def close(self) -> None:
        try:
            await self.explorer.close()
        finally:
            close_trainer(self.trainer, self.buffer)


def close_trainer(trainer: TrainerComponents, buffer: Buffer) -> None:
    """End the learner, then the buffer."""
    try:
        close_component(trainer.learner)
    finally:
        close_component(buffer)

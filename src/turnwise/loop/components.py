"""What the loops hold: protocols only, so that whatever keeps a contract can stand in any place.

`build.py` puts them together. A process has the parts of what it does: who evaluates has `PlayParts`, an explorer has
`ExploreParts` and no learner, a trainer has `LearnParts` and no engine, and a whole run has `TrainParts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from turnwise.audit.batch_audit import BatchAudit
from turnwise.config.schema import TurnwiseSettings
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
from turnwise.report.trajectories import Journals
from turnwise.rollout.scoring import Judging
from turnwise.sync.sync_check import Probe
from turnwise.types import Batch, Metrics, Task

if TYPE_CHECKING:
    from turnwise.loop.step import Explored


def close_part(part: Learner | Buffer | Collector) -> None:
    """A part with processes or files of its own ends them in its `close`; not every part has one."""
    close = getattr(part, "close", None)
    if close is not None:
        close()


@dataclass(frozen=True, kw_only=True)
class Words:
    """The settings of a run, and how its model speaks."""

    settings: TurnwiseSettings
    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate


@dataclass(frozen=True, kw_only=True)
class PlayParts(Words):
    """What is needed to play with a policy: for evaluation alone, this is all."""

    engine: Engine
    channel: Channel
    """The way of weights into the engine."""
    judging: Judging | None
    """None where the environment gives its own rewards."""
    eval_proxy: Collector
    eval_tasks: Sequence[Task]

    @property
    def collectors(self) -> tuple[Collector, ...]:
        return (self.eval_proxy,)

    async def close_play(self) -> None:
        """Nothing more is played: the engine and the environments end."""
        try:
            await self.engine.close()
        finally:
            for collector in self.collectors:
                close_part(collector)


@dataclass(frozen=True, kw_only=True)
class ExploreParts(PlayParts):
    """What is needed to explore: to play training tasks and to store what came out."""

    tasks: TaskSource
    groups_per_rollout: int
    proxy: Collector
    greedy_proxy: Collector | None
    """Plays each task once more, greedily, for credit that measures against it."""
    new_proxies: Callable[[], tuple[Collector, Collector | None]]
    """Makes the two above once more, for a rollout beside a running one."""
    buffer: Buffer
    open_mailbox: Callable[[Callable[[], None]], Mailbox]
    """Opens the way of weights from trainer to explorer; what it is given wakes whoever waits."""
    journals: Journals | None = None
    """Where a loop in one process writes episodes down as they end; None: it does not, or whoever plays does."""
    on_explored: Callable[[int, Explored], None] = lambda step, explored: None
    """Hears of each step's rollout before anything is learnt from it."""

    @property
    def collectors(self) -> tuple[Collector, ...]:
        greedy = () if self.greedy_proxy is None else (self.greedy_proxy,)
        return (self.eval_proxy, self.proxy, *greedy)


@dataclass(frozen=True, kw_only=True)
class LearnParts(Words):
    """What is needed to learn from what is stored."""

    buffer: Buffer
    credit: CreditRule
    learner: Learner
    open_mailbox: Callable[[Callable[[], None]], Mailbox]
    audit: BatchAudit | None = None
    """Checks every batch before its update, and the update after it; None where `audit.is_on` is false."""
    probe: Probe | None = None
    """Compares learner and engine after every sync, where the engine holds weights of its own somewhere else."""
    on_batch: Callable[[int, Batch], None] = lambda update, batch: None
    """Called before every update, with the policy version that it makes."""

    def take_weights(self) -> Weights:
        """The learner's, to be published."""
        return self.learner.weights() if self.probe is None else self.probe.take_weights()

    def sync_metrics(self) -> Metrics:
        """What the newest sync showed."""
        return {} if self.probe is None else self.probe.metrics()

    def close(self) -> None:
        """Nothing more is learnt."""
        try:
            close_part(self.learner)
        finally:
            close_part(self.buffer)


@dataclass(frozen=True, kw_only=True)
class TrainParts(ExploreParts, LearnParts):
    """Everything a training loop connects."""

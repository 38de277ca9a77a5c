"""A world, an engine and a learner that wait where real ones compute: loops and clusters can be timed on busy machines.

What is under test is who waits for whom: everything around these three is the real thing, and what they take is known.
Replies are moves drawn by the dice of each request, so episodes differ in length as random play does.

    engine.type=benchmarks.waiting_parts:WaitingEngine engine.pass_s=0.02 engine.row_s=0.001
    learn.type=benchmarks.waiting_parts:WaitingLearner learn.wait_s=1.0
    env.type=benchmarks.pipelined:SlowLake env.train.step_s=0.1
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

from turnwise.config.settings import Settings
from turnwise.deps import EngineSite
from turnwise.engine.local import ForwardStats
from turnwise.learn.trainer import Trainer
from turnwise.learn.update import batch_metrics
from turnwise.protocols import ChatTemplate
from turnwise.types import Batch, Completion, FinishReason, GenerateRequest, Metrics, StepReport

MOVES = ("Up", "Down", "Left", "Right")


class WaitingEngine:
    """One pass after another for whoever is there, as `LocalEngine` does, with sleep instead of a model."""

    class Params(Settings):
        pass_s: float = 0.02
        row_s: float = 0.001
        load_s: float = 0.05

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> WaitingEngine:
        return cls(settings, site.template, site.policy_version)

    def __init__(self, settings: Any, template: ChatTemplate, policy_version: int) -> None:
        self.policy_version = policy_version
        self._settings = settings
        end = [] if template.end_of_turn_id is None else [template.end_of_turn_id]
        self._replies = [[*template.encode_text(move).tolist(), *end] for move in MOVES]
        self._waiting: list[tuple[list[int], int, asyncio.Future[Completion]]] = []
        self._running: list[tuple[list[int], int, asyncio.Future[Completion]]] = []
        self._num_updates = 0
        self._driver: asyncio.Task[None] | None = None
        self._costs = ForwardStats()

    async def generate(self, request: GenerateRequest) -> Completion:
        ids = self._replies[request.seed % len(MOVES)][: request.sampling.max_new_tokens]
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, len(ids), future))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        return await future

    async def _drive(self) -> None:
        while self._waiting or self._running:
            await asyncio.sleep(0)
            if not self._num_updates:
                self._running += self._waiting
                self._waiting = []
            if not self._running:
                await asyncio.sleep(0.001)
                continue
            started_s, rows = time.perf_counter(), len(self._running)
            await asyncio.sleep(self._settings.pass_s + self._settings.row_s * rows)
            self._costs.add(rows, time.perf_counter() - started_s)
            left = [(ids, tokens - 1, future) for ids, tokens, future in self._running]
            self._running = [row for row in left if row[1] > 0]
            for ids, _, future in (row for row in left if row[1] <= 0):
                if not future.done():
                    future.set_result(self._completion(ids))

    def _completion(self, ids: list[int]) -> Completion:
        return Completion(
            token_ids=np.array(ids, dtype=np.int32),
            behavior_logprobs=np.full(len(ids), -1.4, dtype=np.float32),
            finish_reason=FinishReason.STOP,
            policy_version=self.policy_version,
        )

    def release(self, cache_key: str) -> None:
        """Nothing is kept."""

    async def update_weights(self, weights: object, policy_version: int) -> None:
        self._num_updates += 1
        while self._running:
            await asyncio.sleep(0.001)
        await asyncio.sleep(self._settings.load_s)
        self.policy_version = policy_version
        self._num_updates -= 1

    def state(self) -> Metrics:
        return self._costs.told()

    async def close(self) -> None:
        """Nothing is held."""


class WaitingLearner(Trainer):
    """A trainer whose update is a wait."""

    class Params(Settings):
        wait_s: float = 1.0

    def step(self, batch: Batch) -> StepReport:
        time.sleep(self.settings.wait_s)  # type: ignore[attr-defined]
        self.policy_version += 1
        metrics = {f"learn/{name}": value for name, value in batch_metrics(batch).items()}
        return StepReport(policy_version=self.policy_version, metrics=metrics)

"""What runs in the processes of a cluster: the parts of one machine, each with methods that can be called from afar.

Nothing here knows what carries the calls. A host is opened from the settings of the run, as the part would be at home.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from turnwise.audit.records import Rescorer
from turnwise.cluster.explorer_pool import (
    PackedAnnotations,
    Share,
    Told,
    pack_annotations,
    pack_weights,
    unpack_weights,
)
from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import TurnwiseError
from turnwise.experience.codec import decode_experiences
from turnwise.infra.threads import end_tasks
from turnwise.learn.workers import Note, Rank, ReceivedWeights
from turnwise.loop.build import open_collectors, open_learner, open_rollout
from turnwise.protocols import SFTConfig
from turnwise.sync.sync_check import LogprobEngine, LogprobLearner
from turnwise.types import Batch, FloatArray, IntArray, StepReport, Trajectory

Result = TypeVar("Result")


class LearnerHost:
    """Any learner, in a process of its own."""

    def __init__(self, settings: TurnwiseSettings, model_path: str) -> None:
        if settings.learn.num_threads is not None:
            torch.set_num_threads(settings.learn.num_threads)
        # What is drawn at random for new layers is what a run in one process draws.
        torch.manual_seed(settings.run.seed)
        self._learner = open_learner(settings, model_path)

    def policy_version(self) -> int:
        return self._learner.policy_version

    def annotate(self, blocks: Sequence[bytes]) -> PackedAnnotations:
        return pack_annotations(self._learner.annotate(decode_experiences(blocks)))

    def step(self, batch: Batch) -> StepReport:
        return self._learner.step(batch)

    def imitate(self, blocks: Sequence[bytes], how: SFTConfig) -> Iterator[tuple[int, int, float]]:
        """How many steps are done, of how many; the last loss comes with the last of them."""
        demonstrations = decode_experiences(blocks)

        def learn(note: Note) -> float:
            return self._learner.imitate(demonstrations, how, lambda done, total: note(done, total, 0.0))

        loss = yield from while_it_works(learn)
        yield how.steps, how.steps, loss

    def supervise(self, blocks: Sequence[bytes]) -> None:
        self._learner.supervise(decode_experiences(blocks))

    def weights(self) -> np.ndarray:
        return pack_weights(self._learner.weights())

    def logprobs_of(self, blocks: Sequence[bytes], of: str) -> Sequence[FloatArray]:
        assert isinstance(self._learner, Rescorer), "only a learner that scores stored tokens is asked to"
        return self._learner.logprobs_of(decode_experiences(blocks), of)

    def score(self, token_ids: IntArray) -> FloatArray:
        assert isinstance(self._learner, LogprobLearner), "only a learner that scores is asked to"
        return self._learner.score(token_ids)

    def save_state(self, folder: Path) -> None:
        self._learner.save_state(folder)

    def load_state(self, folder: Path) -> int:
        self._learner.load_state(folder)
        return self._learner.policy_version


class RankHost:
    """One of several ranks: `rank.Rank`, told of as it works."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Notes are not heard."""
        return self._answer(method, arguments, lambda *_: None)

    def tell(self, method: str, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        """Every note as it comes, and the answer last."""
        answer = yield from while_it_works(
            lambda note: self._answer(method, arguments, lambda *told: note("note", told))
        )
        yield "done", answer

    def weights(self) -> tuple[np.ndarray, None]:
        """The weights, which can be left here, and that they are there; of the first rank alone there are any."""
        received = ReceivedWeights()
        self._answer("weights", (), received.hear)
        return pack_weights(received), None

    def _answer(self, method: str, arguments: tuple[Any, ...], note: Note) -> Any:
        try:
            return self._rank.call(method, arguments, note)
        except TurnwiseError:
            raise
        except Exception:
            # The caller is told what it was; the log has the whole story.
            traceback.print_exc()
            raise


def while_it_works(work: Callable[[Note], Result]) -> Generator[tuple[Any, ...], None, Result]:
    """What `work` notes, as it comes; returns what it returns."""
    told: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(lambda *noted: told.put(noted)))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            errors.append(error)
        told.put(None)

    threading.Thread(target=run, daemon=True).start()
    while (noted := told.get()) is not None:
        yield noted
    if errors:
        raise errors[0]
    return results[0]


class ExplorerWorker:
    """An engine, environments, and whoever plays them: shares come in, episodes and groups go out."""

    def __init__(self, settings: TurnwiseSettings, model_path: str, own_path: Path | None = None) -> None:
        """`own_path` is where its engine may keep files of its own."""
        torch.manual_seed(settings.run.seed)
        rollout = open_rollout(settings, model_path, run_path=own_path)
        training = open_collectors(rollout)
        self._engine = rollout.engine
        self._collectors = {"train": training.sampled, "greedy": training.greedy, "eval": rollout.eval_collector}
        self._told_s = dict.fromkeys(self._collectors, 0.0)
        self._playing: dict[int, asyncio.Task[Any]] = {}

    async def load(self, packed: np.ndarray, policy_version: int) -> None:
        await self._engine.update_weights(unpack_weights(packed), policy_version)

    async def score(self, token_ids: IntArray) -> list[FloatArray]:
        assert isinstance(self._engine, LogprobEngine), "only an engine that scores is asked to"
        return list(await self._engine.score(token_ids))

    async def play(self, share: Share) -> AsyncGenerator[Told, None]:
        collector = self._collectors[share.kind]
        assert collector is not None, "the credit rule asks for no greedy play"
        ended: list[Trajectory] = []
        news = asyncio.Event()

        def on_done(trajectory: Trajectory) -> None:
            ended.append(trajectory)
            news.set()

        playing = asyncio.create_task(
            collector.collect(share.tasks, rollout=share.rollout, on_done=on_done, known=share.known)
        )
        playing.add_done_callback(lambda _: news.set())
        self._playing[share.number] = playing
        try:
            while not playing.done():
                await news.wait()
                news.clear()
                if ended:
                    some, ended[:] = tuple(ended), []
                    yield Told(episodes=some)
            spent_s = collector.env_seconds - self._told_s[share.kind]
            self._told_s[share.kind] = collector.env_seconds
            yield Told(groups=tuple(await playing), env_seconds=spent_s)
        finally:
            self._playing.pop(share.number, None)
            await end_tasks([playing])

    async def stop(self, number: int) -> None:
        """Nobody waits for this share any more."""
        if (playing := self._playing.get(number)) is not None:
            playing.cancel()

    async def ready(self) -> None:
        """Answers once it is open."""

    async def close(self) -> None:
        await self._engine.close()

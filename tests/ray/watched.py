"""A run on a cluster that can be looked into and broken while it goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.small_run import SMALL_LAKE
from turnwise.config.load import load_settings
from turnwise.errors import TurnwiseError
from turnwise.report.run_dir import RunDirectory
from turnwise.run.api import new_directory
from turnwise.run.cluster_run import ClusterTraining

ray = pytest.importorskip("ray", reason="the package ray is not installed; `make test-ray` installs it")
from ray.cluster_utils import Cluster  # noqa: E402

from turnwise.cluster.ray_cluster import RayBackend  # noqa: E402

__all__ = ["Cluster", "Watched", "ray"]

DEADLINE_S = 300.0


class Watched:
    """A run in a thread of its own, and the actors that it has opened."""

    def __init__(self, path: Path, address: str, words: list[str]) -> None:
        self.actors: dict[str, Any] = {}
        watched = self

        class Watching(RayBackend):
            def start_learner(self, model_path: str) -> Any:
                return watched._note("learner", super().start_learner(model_path))

            def start_ranks(self, *args: Any, **given: Any) -> Any:
                ranks = super().start_ranks(*args, **given)
                watched.actors |= {f"rank-{rank}": actor for rank, actor in enumerate(ranks.actors)}
                return ranks

            def open_buffer(self) -> Any:
                return watched._note("buffer", super().open_buffer())

            async def hire(self, name: str, model_path: str) -> Any:
                return watched._note(name, await super().hire(name, model_path))

        given = [*SMALL_LAKE, "cluster.type=ray", f"cluster.address={address}", "learn.num_threads=1", *words]
        self.settings = load_settings("frozenlake", given)
        self.directory: RunDirectory = new_directory(self.settings, path)
        self.console = Console(record=True, quiet=False, file=(path / "console.txt").open("w", buffering=1), width=200)
        training = ClusterTraining(self.settings, self.directory, self.console, open_cluster=Watching)
        self.failure: TurnwiseError | None = None
        self._thread = threading.Thread(target=self._run, args=(training,), daemon=True)
        self._thread.start()

    def _note(self, name: str, opened: Any) -> Any:
        self.actors[name] = opened.actor
        return opened

    def _run(self, training: ClusterTraining) -> None:
        async def run() -> None:
            self._loop, self._running = asyncio.get_running_loop(), asyncio.create_task(training.run())
            with suppress(asyncio.CancelledError):
                await self._running

        try:
            asyncio.run(run())
        except TurnwiseError as error:
            self.failure = error

    def stop(self) -> None:
        """As an interrupted command does."""
        self._loop.call_soon_threadsafe(self._running.cancel)
        self.finish()

    def wait_to_fail(self) -> None:
        self._thread.join(DEADLINE_S)
        assert self.failure is not None, self.told()

    def kill(self, name: str) -> None:
        ray.kill(self.actors[name], no_restart=False)

    def wait_until(self, is_so: Callable[[], bool], reason: str) -> None:
        ends_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert self._thread.is_alive(), f"it ended before {reason}: {self.failure}"
            assert time.monotonic() < ends_s, f"no {reason} in {DEADLINE_S} s: {self.told()}"
            time.sleep(0.02)

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: self.steps()[-1:] >= [step], f"step {step}")

    def finish(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"it has not ended: {self.told()}"
        assert self.failure is None, self.failure

    def steps(self) -> list[int]:
        return [int(row["step"]) for row in self.directory.read_metrics()]

    def told(self) -> str:
        return (self.directory.path / "console.txt").read_text()

"""A run on a cluster: the same training, with its parts elsewhere; what is lost there is started again from here.

A lost explorer is replaced while the run goes on, and a lost buffer opens its file again. A lost learner takes its
state with it: the run goes back to its newest checkpoint and makes the updates after it once more, from the episodes
that it learnt from before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console

from turnwise.cluster.explorer_pool import ExplorerPool, ExplorerPoolConfig, Host, Player, open_on_cluster, read_target
from turnwise.config.schema import RayCluster, TurnwiseSettings
from turnwise.errors import WorkerLostError
from turnwise.hooks import Callback
from turnwise.loop.step import Stages
from turnwise.protocols import Learner
from turnwise.report.console import print_notice
from turnwise.report.run_dir import RunDirectory
from turnwise.report.trajectories import EpisodeJournal
from turnwise.run.checkpoints import find_valid_checkpoint
from turnwise.run.run_setup import RunComponents, open_run_components
from turnwise.run.training_run import TrainingRun

_MAX_RETURNS = 5
"""Returns to one checkpoint: after so many, going back once more would not help."""


class Cluster(Protocol):
    """Where the parts of a run can be opened."""

    def open_learner(self, model_path: str) -> Learner: ...

    def open_buffer(self) -> Host: ...

    async def hire(self, name: str, model_path: str) -> Player: ...

    def describe_room(self) -> str: ...

    def close(self) -> None: ...


class ClusterTraining:
    """One run whose parts are elsewhere, from its settings to its summary, across all that is lost on the way."""

    def __init__(
        self,
        settings: TurnwiseSettings,
        directory: RunDirectory,
        console: Console,
        checkpoint: Path | None = None,
        *,
        open_cluster: Callable[[TurnwiseSettings, Path], Cluster] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._callbacks = callbacks
        self._settings = settings
        self._directory = directory
        self._console = console
        self._checkpoint = checkpoint
        self._open_cluster = open_cluster or _open_ray
        self._crew: ExplorerPool | None = None

    async def run(self) -> None:
        cluster = self._open_cluster(self._settings, self._directory.path)
        try:
            await self._run_on(cluster)
        finally:
            if self._crew is not None:
                await self._crew.close()
            cluster.close()

    async def _run_on(self, cluster: Cluster) -> None:
        checkpoint, num_returns = self._checkpoint, 0
        while True:
            try:
                await self._try(cluster, checkpoint)
                EpisodeJournal(self._directory).remove_covered()
                return
            except WorkerLostError as lost:
                newest = find_valid_checkpoint(self._directory, partial(print_notice, self._console))
                num_returns = 1 if newest != checkpoint else num_returns + 1
                if num_returns > _MAX_RETURNS:
                    raise
                checkpoint = newest
                if self._crew is not None:
                    self._crew.forget_weights()
                print_notice(self._console, f"{lost}; the run goes on from {newest.name if newest else 'the start'}")
                if newest is None:
                    RunDirectory.reopen(self._directory.path, step=-1)

    async def _try(self, cluster: Cluster, checkpoint: Path | None) -> None:
        open_here = partial(self._open, cluster, asyncio.get_running_loop())
        # In a thread: explorers start while the learner does.
        components = await asyncio.to_thread(
            open_run_components,
            self._settings,
            self._directory,
            self._console,
            checkpoint,
            open_elsewhere=open_here,
        )
        assert self._crew is not None
        await self._crew.gather()
        training = TrainingRun(
            self._settings, self._directory, self._console, checkpoint, components=components, callbacks=self._callbacks
        )
        await training.run()

    def _open(
        self,
        cluster: Cluster,
        loop: asyncio.AbstractEventLoop,
        settings: TurnwiseSettings,
        directory: RunDirectory,
        model: str,
        stages: Stages,
    ) -> RunComponents:
        if self._crew is None:
            self._crew = self._new_crew(cluster, model)
            loop.call_soon_threadsafe(self._crew.start)
        training = open_on_cluster(
            settings,
            model,
            directory,
            crew=self._crew,
            # It opens while the learner does.
            buffer=cluster.open_buffer(),
            learner=cluster.open_learner(model),
        )
        return RunComponents.of(training, stages)

    def _new_crew(self, cluster: Cluster, model: str) -> ExplorerPool:
        chosen = self._settings.cluster
        assert isinstance(chosen, RayCluster)
        hiring = ExplorerPoolConfig(
            hire=partial(cluster.hire, model_path=model),
            wanted=partial(read_target, self._directory.path, chosen.explorers),
            describe_room=cluster.describe_room,
            timeout_s=chosen.start_timeout_s,
            tell=partial(print_notice, self._console),
        )
        return ExplorerPool(hiring)


def _open_ray(settings: TurnwiseSettings, run_path: Path) -> Cluster:
    from turnwise.cluster.ray_cluster import RayBackend  # noqa: PLC0415 - an extra

    return RayBackend(settings, run_path)

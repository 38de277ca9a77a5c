"""The parts of a run on a Ray cluster, and places for them.

In: settings and a run directory. Out: learner, hosts and players as the rest of this room knows them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from turnwise.config.schema import RayCluster, TurnwiseSettings
from turnwise.config.schema_learn import LearnSettings, OneProcess
from turnwise.config.settings import require_package
from turnwise.errors import ClusterError, LostError
from turnwise.loop.build import open_learner
from turnwise.loop.cluster.actor_site import ActorSite
from turnwise.loop.cluster.actors import ExplorerActor, LearnerActor, RankActor
from turnwise.loop.cluster.buffer_host import BufferActor
from turnwise.loop.cluster.proxies import RemoteLearner
from turnwise.loop.cluster.ray_calls import RayHost, RayPlayer, failures, places, ray
from turnwise.loop.cluster.ray_ranks import RayRanks
from turnwise.protocols import Learner

strategies: Any = require_package("ray.util.scheduling_strategies", extra="ray", asked_by="cluster.type: 'ray'")

_LOCAL_CPUS = 0.01
"""Of each actor on a local cluster: Ray counts cores to place actors, and there they share those of one machine."""
_PLACE_S = 1.0
"""How often a wait for a place looks whether it is still wanted."""
_KNOCK_S = 10.0
"""Longest wait for a machine to say that somebody listens there."""


class OnRay:
    """A cluster that is running, or a local one that lives as long as this object."""

    def __init__(self, settings: TurnwiseSettings, run_path: Path) -> None:
        assert isinstance(settings.cluster, RayCluster)
        self._settings = settings
        self._chosen = settings.cluster
        self._timeout_s = settings.sync.timeout_s
        self._is_own = _connect(self._chosen)
        self._groups: list[Any] = []
        self._learner_group: Any = None
        self._site = ActorSite(
            name="",
            # Not as in a file: secrets travel with them.
            settings_yaml=yaml.safe_dump(settings.model_dump(mode="json")),
            run_path=run_path.resolve(),
            working_folder=Path.cwd(),
        )

    def close(self) -> None:
        for group in self._groups:
            with suppress(failures.RayError, ValueError):
                places.remove_placement_group(group)
        if self._is_own:
            ray.shutdown()

    # --- the parts -----------------------------------------------------------------------------------------------

    def open_learner(self, model_path: str) -> Learner:
        """In a place of its own; LostError from its calls means that it must be opened again."""
        if self._settings.learn.parallel.type == "none":
            return RemoteLearner(self.start_learner(model_path))
        return open_learner(self._settings, model_path, run_path=self._site.run_path, start_ranks=self.start_ranks)

    def start_learner(self, model_path: str) -> RayHost:
        site = replace(self._site, name="learner", model_path=model_path)
        (actor,) = self._learner_actors(LearnerActor, [site])
        return RayHost(actor, site, self._timeout_s, start_timeout_s=self._chosen.start_timeout_s)

    def start_ranks(self, settings: LearnSettings, *, run_path: Path | None) -> RayRanks:
        """As `StartRanks` says; they lie near each other where the cluster allows it."""
        assert run_path is not None
        assert not isinstance(settings.parallel, OneProcess)
        sites = [replace(self._site, name=f"rank-{rank}", run_path=run_path) for rank in range(settings.parallel.ranks)]
        actors = self._learner_actors(RankActor, sites)
        ranks = RayRanks(list(zip(actors, sites, strict=True)), timeout_s=settings.parallel.timeout_s)
        ranks.meet(
            device=settings.device if self._chosen.learner_gpus else "cpu",
            num_threads=settings.num_threads or max(1, int(self._chosen.learner_cpus)),
            start_timeout_s=self._chosen.start_timeout_s,
        )
        return ranks

    def open_buffer(self) -> RayHost:
        """Beside this process, where the directory of the run is; Ray starts it again wherever it can be."""
        site = replace(self._site, name="buffer")
        here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        actor = ray.remote(BufferActor).options(**options).remote(site)
        return RayHost(actor, site, self._timeout_s, start_timeout_s=self._chosen.start_timeout_s)

    async def hire(self, name: str, model_path: str) -> RayPlayer:
        """Return when an explorer has found a place and is open; waits for the place as long as it is wanted."""
        site = replace(self._site, name=name, model_path=model_path)
        cpus, gpus = self._cpus(self._chosen.explorer_cpus), self._chosen.explorer_gpus
        group = self._reserve(cpus, gpus)
        try:
            while not await asyncio.to_thread(group.wait, _PLACE_S):
                pass
            player = RayPlayer(_actor(ExplorerActor, group, cpus=cpus, gpus=gpus).remote(site), site, group)
            async with asyncio.timeout(self._chosen.start_timeout_s):
                await player.open()
        except BaseException as error:
            places.remove_placement_group(group)
            if isinstance(error, TimeoutError):
                limit = f"{self._chosen.start_timeout_s:g} s (cluster.start_timeout_s)"
                raise LostError(f"{name} was not ready after {limit}; see {site.log}") from None
            raise
        return player

    def describe_room(self) -> str:
        asked = f"{self._chosen.explorer_cpus:g} CPU and {self._chosen.explorer_gpus:g} GPU"
        return f"Each asks for {asked} (cluster.explorer_cpus, cluster.explorer_gpus). {self._room()}"

    # --- places --------------------------------------------------------------------------------------------------

    def _cpus(self, asked: float) -> float:
        is_local = self._is_own and self._chosen.address is None
        return min(asked, _LOCAL_CPUS) if is_local else asked

    def _learner_actors(self, actor_class: type, sites: Sequence[ActorSite]) -> list[Any]:
        if self._learner_group is not None:
            # Those before are lost; what was set aside for them is needed now.
            places.remove_placement_group(self._learner_group)
        cpus, gpus = self._cpus(self._chosen.learner_cpus), self._chosen.learner_gpus
        self._learner_group = group = self._reserve(cpus, gpus, num_places=len(sites))
        if not group.wait(self._chosen.start_timeout_s):
            who = "the learner" if len(sites) == 1 else f"the learner's {len(sites)} ranks"
            raise ClusterError(f"{who} found no place in {self._chosen.start_timeout_s:g} s. {self._room()}")
        return [
            _actor(actor_class, group, cpus=cpus, gpus=gpus, place=place).remote(site)
            for place, site in enumerate(sites)
        ]

    def _reserve(self, cpus: float, gpus: float, num_places: int = 1) -> Any:
        bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        group = places.placement_group([bundle] * num_places, strategy="PACK")
        self._groups.append(group)
        return group

    @staticmethod
    def _room() -> str:
        total, free = ray.cluster_resources(), ray.available_resources()
        sizes = ", ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
        return f"The cluster has {sizes} free. Ask for less, or add machines."


def _actor(actor_class: type, group: Any, *, cpus: float, gpus: float, place: int = 0) -> Any:
    there = strategies.PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=place)
    return ray.remote(actor_class).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=there)


def _connect(chosen: RayCluster) -> bool:
    """Whether a connection was made here, which is to be ended here; a local cluster ends with it."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if chosen.address is None:
        # Ray lets its workers give way to everything else on the machine; those of a run are as urgent as the command.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(address="local", include_dashboard=False, **quiet)
        except Exception as error:  # Ray raises plain ones where a node does not come up
            ray.shutdown()
            raise ClusterError(
                f"a local Ray cluster did not start ({error}). Where the machine is busy, try again, or start one with "
                "'ray start --head' and set cluster.address=auto."
            ) from error
        return True
    try:
        _knock(chosen.address)
        ray.init(address=chosen.address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"cluster.address: '{chosen.address}' given; no Ray cluster answers there ({error}). Start one with "
            "'ray start --head', check host and port, or leave cluster.address out for a local one."
        ) from error
    return True


def _knock(address: str) -> None:
    """OSError where nobody listens at HOST:PORT: Ray itself tries for many minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "//" not in host:
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()

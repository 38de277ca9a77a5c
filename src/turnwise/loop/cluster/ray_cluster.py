"""The parts of a run on a Ray cluster: places for them, calls to them, and Ray's failures in our words.

In: settings and a run directory. Out: hosts and players as the rest of this room knows them. The only file, beside
`actors.py`, that knows Ray.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.config.load import dump_settings
from turnwise.config.packages import require_package
from turnwise.config.schema import TurnwiseSettings
from turnwise.config.sections.cluster import RayCluster
from turnwise.errors import ClusterError, LostError, TurnwiseError
from turnwise.loop.cluster.actor_site import ActorSite
from turnwise.loop.cluster.actors import ExplorerActor, LearnerActor
from turnwise.loop.cluster.buffer_host import BufferActor
from turnwise.loop.cluster.crew import WeightsLostError
from turnwise.loop.cluster.proxies import RemoteWeights, pack_weights
from turnwise.loop.cluster.shares import Share, Told
from turnwise.protocols import Weights
from turnwise.types import FloatArray, IntArray

_needed = partial(require_package, extra="ray", asked_by="cluster.type: 'ray'")
ray: Any = _needed("ray")
failures: Any = _needed("ray.exceptions")
places: Any = _needed("ray.util.placement_group")
strategies: Any = _needed("ray.util.scheduling_strategies")

_CLOSE_S = 10.0
"""Longest time that an explorer may take to let go of its engine."""
_LOCAL_CPUS = 0.01
"""Of each actor on a local cluster: Ray counts cores to place actors, and there they share those of one machine."""
_PLACE_S = 1.0
"""How often a wait for a place looks whether it is still wanted."""


class OnRay:
    """A cluster that is running, or a local one that lives as long as this object."""

    def __init__(self, settings: TurnwiseSettings, run_path: Path) -> None:
        assert isinstance(settings.cluster, RayCluster)
        self._chosen = settings.cluster
        self._timeout_s = settings.sync.timeout_s
        self._is_own = _connect(self._chosen)
        self._groups: list[Any] = []
        self._learner_group: Any = None
        self._site = ActorSite(
            name="",
            settings_yaml=dump_settings(settings),
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

    def open_learner(self, model_path: str) -> RayHost:
        """In a place of its own; LostError from its calls means that it must be opened again."""
        site = replace(self._site, name="learner", model_path=model_path)
        if self._learner_group is not None:
            # The one before is lost; what was set aside for it is needed now.
            places.remove_placement_group(self._learner_group)
        cpus, gpus = self._cpus(self._chosen.learner_cpus), self._chosen.learner_gpus
        self._learner_group = group = self._reserve(cpus, gpus)
        if not group.wait(self._chosen.start_timeout_s):
            raise ClusterError(f"the learner found no place in {self._chosen.start_timeout_s:g} s. {self._room()}")
        actor = _actor(LearnerActor, group, cpus=cpus, gpus=gpus).remote(site)
        return RayHost(actor, site, self._timeout_s, start_timeout_s=self._chosen.start_timeout_s)

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

    def _reserve(self, cpus: float, gpus: float) -> Any:
        group = places.placement_group([{"CPU": cpus, **({"GPU": gpus} if gpus else {})}], strategy="PACK")
        self._groups.append(group)
        return group

    @staticmethod
    def _room() -> str:
        total, free = ray.cluster_resources(), ray.available_resources()
        sizes = ", ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
        return f"The cluster has {sizes} free. Ask for less, or add machines."


def _actor(actor_class: type, group: Any, *, cpus: float, gpus: float) -> Any:
    place = strategies.PlacementGroupSchedulingStrategy(placement_group=group)
    return ray.remote(actor_class).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place)


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
        ray.init(address=chosen.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"cluster.address: '{chosen.address}' given; no Ray cluster answers there ({error}). Start one with "
            "'ray start --head', check host and port, or leave cluster.address out for a local one."
        ) from error
    return True


# --- calls -----------------------------------------------------------------------------------------------------------


@contextmanager
def _in_our_words(site: ActorSite, *, limit: str = "sync.timeout_s") -> Iterator[None]:
    """What an actor raised is raised here; an actor that is gone is a LostError. `limit` is the wait's setting."""
    try:
        yield
    except failures.GetTimeoutError as error:
        raise ClusterError(f"{site.name} has not answered in time; see {site.log}, or raise {limit}.") from error
    except failures.RayTaskError as error:
        if isinstance(error.cause, TurnwiseError):
            raise error.cause from None
        if isinstance(error.cause, failures.ObjectLostError):
            raise WeightsLostError(f"weights on their way to {site.name} are gone") from error
        raise ClusterError(f"{site.name} failed: {error.cause!r}; see {site.log}.") from error
    except failures.ObjectLostError as error:
        raise WeightsLostError(f"weights on their way to {site.name} are gone") from error
    except failures.RayError as error:
        raise LostError(f"{site.name} is gone ({type(error).__name__}); see {site.log}") from error


class RayReference:
    """A result that lies in Ray's object store, on the machine that made it."""

    def __init__(self, ref: Any, site: ActorSite, timeout_s: float) -> None:
        self.ref = ref
        self._site = site
        self._timeout_s = timeout_s

    def get(self) -> Any:
        with _in_our_words(self._site):
            return ray.get(self.ref, timeout=self._timeout_s)


class RayHost:
    """A `Host` that is an actor. It opens while the caller goes on; its first answer waits for that."""

    def __init__(self, actor: Any, site: ActorSite, timeout_s: float, *, start_timeout_s: float) -> None:
        self.actor = actor
        self._site = site
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._opening: Any = actor.open.remote()

    def call(self, method: str, *args: object) -> Any:
        return self.refer(method, *args).get()

    def stream(self, method: str, *args: object) -> Iterator[Any]:
        self._wait_until_open()
        with _in_our_words(self._site):
            for ref in getattr(self.actor, method).remote(*args):
                yield ray.get(ref, timeout=self._timeout_s)

    def refer(self, method: str, *args: object) -> RayReference:
        self._wait_until_open()
        with _in_our_words(self._site):
            return RayReference(getattr(self.actor, method).remote(*args), self._site, self._timeout_s)

    def _wait_until_open(self) -> None:
        if self._opening is not None:
            with _in_our_words(self._site, limit="cluster.start_timeout_s"):
                ray.get(self._opening, timeout=self._start_timeout_s)
            self._opening = None


class RayPlayer:
    """A `Player` that is an actor."""

    def __init__(self, actor: Any, site: ActorSite, group: Any) -> None:
        self.name = site.name
        self.actor = actor
        self._site = site
        self._group = group

    async def open(self) -> None:
        with _in_our_words(self._site):
            await self.actor.open.remote()

    async def play(self, share: Share) -> AsyncGenerator[Told, None]:
        is_over = False
        try:
            with _in_our_words(self._site):
                async for ref in self.actor.play.remote(share):
                    told: Told = await ref
                    is_over = told.groups is not None
                    yield told
        finally:
            if not is_over:
                self.actor.stop.remote(share.number)

    async def load(self, weights: Weights, policy_version: int) -> None:
        with _in_our_words(self._site):
            await self.actor.load.remote(_reference_to(weights), policy_version)

    async def score(self, token_ids: IntArray) -> Sequence[FloatArray]:
        with _in_our_words(self._site):
            return await self.actor.score.remote(token_ids)

    async def leave(self) -> None:
        with suppress(failures.RayError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self.actor.close.remote()
        with suppress(failures.RayError, ValueError):
            ray.kill(self.actor)
            places.remove_placement_group(self._group)


def _reference_to(weights: Weights) -> Any:
    """Where they lie already, or a place in the object store for those of this process."""
    if isinstance(weights, RemoteWeights) and isinstance(weights.reference, RayReference):
        return weights.reference.ref
    packed: np.ndarray = pack_weights(weights)
    return ray.put(packed)

"""The parts of a run on a Ray cluster, and places for them.

In: settings and a run directory. Out: learner, hosts and players as the rest of this room knows them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from transformers.utils import logging as transformers_logging

from turnwise.cluster.buffer_worker import ActorConfig, BufferActor, begin
from turnwise.cluster.explorer_pool import RemoteLearner, RemoteWeights, Share, Told, WeightsLostError, pack_weights
from turnwise.cluster.workers import ExplorerWorker, LearnerHost, RankHost
from turnwise.config.schema import RayCluster, TurnwiseSettings
from turnwise.config.schema_learn import LearnSettings, OneProcess
from turnwise.config.settings import require_package
from turnwise.errors import ClusterError, LearnError, TurnwiseError, WorkerLostError
from turnwise.infra.wait_tracking import waiting
from turnwise.learn.parallel_context import rank_devices
from turnwise.learn.workers import Note, Rank, RankPlace
from turnwise.loop.build import open_learner
from turnwise.protocols import Learner, Weights
from turnwise.types import FloatArray, IntArray

_needed = partial(require_package, extra="ray", asked_by="cluster.type: 'ray'")
ray: Any = _needed("ray")
failures: Any = _needed("ray.exceptions")
places: Any = _needed("ray.util.placement_group")

_CLOSE_S = 10.0
"""Longest time that an explorer may take to let go of its engine."""


class RayCallError(ClusterError):
    """An actor raised what is not of turnwise: a fault in it, or in what it uses."""


@contextmanager
def translate_ray_errors(site: ActorConfig, *, limit: str = "sync.timeout_s") -> Iterator[None]:
    """Raise here what an actor raised; a lost actor is a WorkerLostError. `limit` is the setting of the wait."""
    try:
        yield
    except failures.GetTimeoutError as error:
        raise ClusterError(f"{site.name} has not answered in time; see {site.log}, or raise {limit}.") from error
    except failures.RayTaskError as error:
        if isinstance(error.cause, TurnwiseError):
            raise error.cause from None
        if isinstance(error.cause, failures.RayError):
            # It is there itself: what it was given is gone with its machine, or with the actor that was to make it.
            raise WeightsLostError(f"weights on their way to {site.name} are gone") from error
        raise RayCallError(f"{site.name} failed: {error.cause!r}; see {site.log}.") from error
    except failures.ObjectLostError as error:
        raise WeightsLostError(f"weights on their way to {site.name} are gone") from error
    except failures.RayError as error:
        raise WorkerLostError(f"{site.name} is gone ({type(error).__name__}); see {site.log}") from error


class RayReference:
    """A result that lies in Ray's object store, on the machine that made it."""

    def __init__(self, ref: Any, site: ActorConfig, timeout_s: float) -> None:
        self.ref = ref
        self._site = site
        self._timeout_s = timeout_s

    def get(self) -> Any:
        with translate_ray_errors(self._site), waiting("the run", f"an answer of {self._site.name}", self._timeout_s):
            return ray.get(self.ref, timeout=self._timeout_s)


class RayHost:
    """A `Host` that is an actor. It opens while the caller goes on; its first answer waits for that."""

    def __init__(self, actor: Any, site: ActorConfig, timeout_s: float, *, start_timeout_s: float) -> None:
        self.actor = actor
        self._site = site
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._opening: Any = actor.open.remote()

    def call(self, method: str, *args: object) -> Any:
        return self.refer(method, *args).get()

    def stream(self, method: str, *args: object) -> Iterator[Any]:
        self._wait_until_open()
        with translate_ray_errors(self._site):
            for ref in getattr(self.actor, method).remote(*args):
                yield ray.get(ref, timeout=self._timeout_s)

    def refer(self, method: str, *args: object) -> RayReference:
        self._wait_until_open()
        with translate_ray_errors(self._site):
            return RayReference(getattr(self.actor, method).remote(*args), self._site, self._timeout_s)

    def _wait_until_open(self) -> None:
        if self._opening is not None:
            limit_s = self._start_timeout_s
            with (
                translate_ray_errors(self._site, limit="cluster.start_timeout_s"),
                waiting("the run", f"{self._site.name} to be there", limit_s),
            ):
                ray.get(self._opening, timeout=limit_s)
            self._opening = None


class RayExplorerClient:
    """A `Player` that is an actor."""

    def __init__(self, actor: Any, site: ActorConfig, group: Any) -> None:
        self.name = site.name
        self.actor = actor
        self._site = site
        self._group = group

    async def open(self) -> None:
        with translate_ray_errors(self._site):
            await self.actor.open.remote()

    async def play(self, share: Share) -> AsyncGenerator[Told, None]:
        is_over = False
        try:
            with translate_ray_errors(self._site):
                async for ref in self.actor.play.remote(share):
                    told: Told = await ref
                    is_over = told.groups is not None
                    yield told
        finally:
            if not is_over:
                self.actor.stop.remote(share.number)

    async def load(self, weights: Weights, policy_version: int) -> None:
        with translate_ray_errors(self._site):
            await self.actor.load.remote(_reference_to(weights), policy_version)

    async def score(self, token_ids: IntArray) -> Sequence[FloatArray]:
        with translate_ray_errors(self._site):
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


_GRACE_S = 60.0
"""After the failure of one rank, the others have this long to fail alike. Ranks hear of a lost one before Ray does, and
of a lost machine Ray itself is sure only after several missed calls."""


class RayRanks:
    """`hosts.RankHosts` on a cluster."""

    def __init__(self, ranks: Sequence[tuple[Any, ActorConfig]], *, timeout_s: float) -> None:
        """`ranks` are actors with what they were told; `timeout_s` is the longest that an answer may take."""
        self.actors = [actor for actor, _ in ranks]
        self._sites = [site for _, site in ranks]
        self._timeout_s = timeout_s
        self._one_call = threading.Lock()
        """All ranks hear calls in one order."""
        self._end: TurnwiseError | None = None
        """Why nothing can be asked of them any more."""

    def meet(self, *, device: str, num_threads: int, start_timeout_s: float) -> None:
        """Return when all have met; `device` is what each of them is to find on its own machine."""
        limit = f"cluster.start_timeout_s = {start_timeout_s:g}"
        with self._calling("open"):
            deadline_s = time.monotonic() + start_timeout_s
            point = self._collect("meeting_point", {0: self.actors[0].meeting_point.remote()}, deadline_s, limit)
            asked = {
                rank: actor.open.remote(
                    RankPlace(
                        rank=rank,
                        size=len(self.actors),
                        rendezvous=point,
                        device=device,
                        num_threads=num_threads,
                        timeout_s=self._timeout_s,
                    )
                )
                for rank, actor in enumerate(self.actors)
            }
            self._collect("open", asked, deadline_s, limit)

    def call(self, method: str, *arguments: Any, on_note: Note | None = None) -> Any:
        with self._calling(method):
            given = ray.put(arguments)
            asked = {
                rank: (actor.tell if on_note is not None and rank == 0 else actor.call).remote(method, given)
                for rank, actor in enumerate(self.actors)
            }
            return self._answers(method, asked, on_note)

    def weights(self) -> Weights:
        """They stay where they are; that they are there is known."""
        with self._calling("weights"):
            asked = [actor.weights.options(num_returns=2).remote() for actor in self.actors]
            self._answers("weights", {rank: is_there for rank, (_, is_there) in enumerate(asked)})
            return RemoteWeights(RayReference(asked[0][0], self._sites[0], self._timeout_s))

    def stop(self) -> None:
        self._stop(LearnError("the ranks of learn.parallel have ended."))

    # --- answers -------------------------------------------------------------------------------------------------

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        with self._one_call:
            if self._end is not None:
                raise self._end
            try:
                yield
            except TurnwiseError:
                raise
            except BaseException:
                # Half a call: ranks may be anywhere in it.
                self._stop(LearnError(f"the ranks of learn.parallel have ended: '{method}' was broken off."))
                raise

    def _answers(self, method: str, asked: Mapping[int, Any], on_note: Note | None = None) -> Any:
        limit = f"learn.parallel.timeout_s = {self._timeout_s:g}"
        return self._collect(method, asked, time.monotonic() + self._timeout_s, limit, on_note)

    def _collect(
        self, method: str, asked: Mapping[int, Any], deadline_s: float, limit: str, on_note: Note | None = None
    ) -> Any:
        """What the first rank answers; raises when one is gone, fails, or says nothing for too long."""
        waiting = dict(asked)
        failed: list[TurnwiseError] = []
        answer: Any = None
        while waiting and (rank := _first_ready(waiting, deadline_s)) is not None:
            try:
                with translate_ray_errors(self._sites[rank]):
                    kind, told = _hear(waiting[rank])
            except WorkerLostError as lost:
                raise self._stop(lost) from None
            except TurnwiseError as error:
                del waiting[rank]
                failed.append(error)
                deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
                continue
            if kind == "note":
                if on_note is not None:
                    on_note(*told)
                continue
            del waiting[rank]
            if rank == 0:
                answer = told
        if failed:
            raise self._failure(failed, is_alike=len(failed) == len(self.actors))
        if waiting:
            raise self._stop(self._silent(sorted(waiting), method, limit))
        return answer

    def _failure(self, failed: Sequence[TurnwiseError], *, is_alike: bool) -> TurnwiseError:
        """Ranks that all failed in words of turnwise are as they were; others may hold half an update."""
        first, is_own = failed[0], not any(isinstance(error, RayCallError) for error in failed)
        if is_alike and is_own:
            return first
        if isinstance(first, RayCallError):
            return self._stop(
                LearnError(f"{first} All ranks were stopped; go on from the last checkpoint with --resume.")
            )
        return self._stop(first)

    def _silent(self, ranks: Sequence[int], method: str, limit: str) -> LearnError:
        who = ", ".join(str(rank) for rank in ranks)
        return LearnError(
            f"ranks gave no answer to '{method}' within {limit} (waiting for: {who}). All were stopped; go on from the "
            f"last checkpoint with --resume. A log: {self._sites[ranks[0]].log}"
        )

    def _stop(self, why: TurnwiseError) -> TurnwiseError:
        """End all ranks; `why` is what the next caller is told."""
        if self._end is None:
            self._end = why
            for actor in self.actors:
                with suppress(failures.RayError, ValueError):
                    ray.kill(actor)
        return why


def _first_ready(waiting: Mapping[int, Any], deadline_s: float) -> int | None:
    """A rank that has something to say, or is gone; None where the time is over."""
    ready, _ = ray.wait(list(waiting.values()), timeout=max(deadline_s - time.monotonic(), 0.0))
    return next((rank for rank, asked in waiting.items() if ready and asked is ready[0]), None)


def _hear(asked: Any) -> tuple[str, Any]:
    if isinstance(asked, ray.ObjectRefGenerator):
        return ray.get(next(asked))
    return "done", ray.get(asked)


# Their logs are read by people: no bars of other packages.
transformers_logging.disable_progress_bar()


class LearnerActor(LearnerHost):
    """`LearnerHost` as an actor."""

    def __init__(self, site: ActorConfig) -> None:
        self._site = site

    def open(self) -> None:
        super().__init__(begin(self._site), self._site.model_path)


class RankActor(RankHost):
    """`RankHost` as an actor."""

    def __init__(self, site: ActorConfig) -> None:
        self._site = site

    def meeting_point(self) -> str:
        """Where the others find this one: an address of its machine, and a port that is free there."""
        network: Any = require_package("ray.util", extra="ray", asked_by="cluster.type: 'ray'")
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{network.get_node_ip_address()}:{free.getsockname()[1]}"

    def open(self, place: RankPlace) -> None:
        """Return when all ranks have met. Ray shows each the GPUs that are its own, so it computes on the first."""
        begin(self._site)
        super().__init__(Rank(replace(place, device=rank_devices(place.device, 1)[0])))


class ExplorerActor(ExplorerWorker):
    """`ExplorerWorker` as an actor."""

    def __init__(self, site: ActorConfig) -> None:
        self._site = site

    async def open(self) -> None:
        own = self._site.run_path / "explorers" / self._site.name
        super().__init__(begin(self._site), self._site.model_path, own)


strategies: Any = require_package("ray.util.scheduling_strategies", extra="ray", asked_by="cluster.type: 'ray'")

_LOCAL_CPUS = 0.01
"""Of each actor on a local cluster: Ray counts cores to place actors, and there they share those of one machine."""
_PLACE_S = 1.0
"""How often a wait for a place looks whether it is still wanted."""
_KNOCK_S = 10.0
"""Longest wait for a machine to say that somebody listens there."""


class RayBackend:
    """A cluster that is running, or a local one that lives as long as this object."""

    def __init__(self, settings: TurnwiseSettings, run_path: Path) -> None:
        assert isinstance(settings.cluster, RayCluster)
        self._settings = settings
        self._chosen = settings.cluster
        self._timeout_s = settings.sync.timeout_s
        self._is_own = _connect(self._chosen)
        self._groups: list[Any] = []
        self._learner_group: Any = None
        self._site = ActorConfig(
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
        """In a place of its own; WorkerLostError from its calls means that it must be opened again."""
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

    async def hire(self, name: str, model_path: str) -> RayExplorerClient:
        """Return when an explorer has found a place and is open; waits for the place as long as it is wanted."""
        site = replace(self._site, name=name, model_path=model_path)
        cpus, gpus = self._cpus(self._chosen.explorer_cpus), self._chosen.explorer_gpus
        group = self._reserve(cpus, gpus)
        try:
            while not await asyncio.to_thread(group.wait, _PLACE_S):
                pass
            player = RayExplorerClient(_actor(ExplorerActor, group, cpus=cpus, gpus=gpus).remote(site), site, group)
            async with asyncio.timeout(self._chosen.start_timeout_s):
                await player.open()
        except BaseException as error:
            places.remove_placement_group(group)
            if isinstance(error, TimeoutError):
                limit = f"{self._chosen.start_timeout_s:g} s (cluster.start_timeout_s)"
                raise WorkerLostError(f"{name} was not ready after {limit}; see {site.log}") from None
            raise
        return player

    def describe_room(self) -> str:
        asked = f"{self._chosen.explorer_cpus:g} CPU and {self._chosen.explorer_gpus:g} GPU"
        return f"Each asks for {asked} (cluster.explorer_cpus, cluster.explorer_gpus). {self._room()}"

    # --- places --------------------------------------------------------------------------------------------------

    def _cpus(self, asked: float) -> float:
        is_local = self._is_own and self._chosen.address is None
        return min(asked, _LOCAL_CPUS) if is_local else asked

    def _learner_actors(self, actor_class: type, sites: Sequence[ActorConfig]) -> list[Any]:
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

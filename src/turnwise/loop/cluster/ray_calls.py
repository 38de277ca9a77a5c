"""Calls to actors of a Ray cluster, and Ray's failures in our words.

In: actors. Out: hosts and players as the rest of this room knows them. With `ray_cluster.py` and `ray_ranks.py`, one of
the three files that know Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from turnwise.config.settings import require_package
from turnwise.errors import ClusterError, LostError, TurnwiseError
from turnwise.infra.wait_tracking import waiting
from turnwise.loop.cluster.actor_site import ActorSite
from turnwise.loop.cluster.crew import WeightsLostError
from turnwise.loop.cluster.proxies import RemoteWeights, pack_weights
from turnwise.loop.cluster.shares import Share, Told
from turnwise.protocols import Weights
from turnwise.types import FloatArray, IntArray

_needed = partial(require_package, extra="ray", asked_by="cluster.type: 'ray'")
ray: Any = _needed("ray")
failures: Any = _needed("ray.exceptions")
places: Any = _needed("ray.util.placement_group")

_CLOSE_S = 10.0
"""Longest time that an explorer may take to let go of its engine."""


class ForeignError(ClusterError):
    """An actor raised what is not of turnwise: a fault in it, or in what it uses."""


@contextmanager
def in_our_words(site: ActorSite, *, limit: str = "sync.timeout_s") -> Iterator[None]:
    """What an actor raised is raised here; an actor that is gone is a LostError. `limit` is the wait's setting."""
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
        raise ForeignError(f"{site.name} failed: {error.cause!r}; see {site.log}.") from error
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
        with in_our_words(self._site), waiting("the run", f"an answer of {self._site.name}", self._timeout_s):
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
        with in_our_words(self._site):
            for ref in getattr(self.actor, method).remote(*args):
                yield ray.get(ref, timeout=self._timeout_s)

    def refer(self, method: str, *args: object) -> RayReference:
        self._wait_until_open()
        with in_our_words(self._site):
            return RayReference(getattr(self.actor, method).remote(*args), self._site, self._timeout_s)

    def _wait_until_open(self) -> None:
        if self._opening is not None:
            limit_s = self._start_timeout_s
            with (
                in_our_words(self._site, limit="cluster.start_timeout_s"),
                waiting("the run", f"{self._site.name} to be there", limit_s),
            ):
                ray.get(self._opening, timeout=limit_s)
            self._opening = None


class RayPlayer:
    """A `Player` that is an actor."""

    def __init__(self, actor: Any, site: ActorSite, group: Any) -> None:
        self.name = site.name
        self.actor = actor
        self._site = site
        self._group = group

    async def open(self) -> None:
        with in_our_words(self._site):
            await self.actor.open.remote()

    async def play(self, share: Share) -> AsyncGenerator[Told, None]:
        is_over = False
        try:
            with in_our_words(self._site):
                async for ref in self.actor.play.remote(share):
                    told: Told = await ref
                    is_over = told.groups is not None
                    yield told
        finally:
            if not is_over:
                self.actor.stop.remote(share.number)

    async def load(self, weights: Weights, policy_version: int) -> None:
        with in_our_words(self._site):
            await self.actor.load.remote(_reference_to(weights), policy_version)

    async def score(self, token_ids: IntArray) -> Sequence[FloatArray]:
        with in_our_words(self._site):
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

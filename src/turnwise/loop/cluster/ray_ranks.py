"""Ranks as actors of a Ray cluster: each in a place of its own, called all at once.

In: actors that are starting. Out: `RankHosts`. They meet at an address of the first one's machine. One that is gone
ends all of them with a LostError, so that the run goes back to its newest checkpoint; one that fails ends all of them
and the run, as `processes.py` does on one machine. Weights stay in the object store of the machine that gathered them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from turnwise.errors import LearnError, LostError, TurnwiseError
from turnwise.learn.workers import Note, RankPlace
from turnwise.loop.cluster.actor_site import ActorSite
from turnwise.loop.cluster.proxies import RemoteWeights
from turnwise.loop.cluster.ray_calls import ForeignError, RayReference, failures, in_our_words, ray
from turnwise.protocols import Weights

_GRACE_S = 60.0
"""After the failure of one rank, the others have this long to fail alike. Ranks hear of a lost one before Ray does, and
of a lost machine Ray itself is sure only after several missed calls."""


class RayRanks:
    """`hosts.RankHosts` on a cluster."""

    def __init__(self, ranks: Sequence[tuple[Any, ActorSite]], *, timeout_s: float) -> None:
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
                with in_our_words(self._sites[rank]):
                    kind, told = _hear(waiting[rank])
            except LostError as lost:
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
        first, is_own = failed[0], not any(isinstance(error, ForeignError) for error in failed)
        if is_alike and is_own:
            return first
        if isinstance(first, ForeignError):
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

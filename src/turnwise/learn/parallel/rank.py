"""What runs in each rank: one learner over its share, called from outside.

In: a `RankPlace`, then the names of methods and their arguments. Out: what the learner returns, on the first rank. The
same calls reach all ranks in the same order, so that they meet in every collective operation.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from turnwise.config.component import LEARNERS, LOSSES
from turnwise.config.schema import read_section
from turnwise.config.schema_learn import FsdpRanks, LearnSettings
from turnwise.deps import LearnerSite
from turnwise.learn.parallel.hosts import Note, RankPlace, RankTask
from turnwise.learn.parallel.sent_weights import send_weights
from turnwise.learn.parallel.team import Replicas, Team


class Rank:
    """One of several processes that learn together. `call` is the whole of its outside."""

    def __init__(self, place: RankPlace) -> None:
        """Returns when all ranks have met."""
        self._place = place
        self._device = torch.device(place.device)
        self._learner: Any = None
        torch.set_num_threads(place.num_threads)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        elif place.rendezvous.startswith("file://"):
            # Ranks that meet in a file are on one machine, and nobody else should hear them.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        dist.init_process_group(
            # Numbers and files go over gloo where tensors go over NCCL.
            "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo",
            init_method=place.rendezvous,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=place.timeout_s),
        )

    def call(self, method: str, arguments: tuple[Any, ...], note: Note) -> Any:
        """`note` is for what is told while the call runs. Only the first rank's answer is heard."""
        match method:
            case "open":
                answer = self._open(*arguments)
            case "weights":
                # Told one by one: an answer would hold them all once more.
                answer = send_weights(self._learner.weights(), note)
            case "imitate":
                answer = self._learner.imitate(*arguments, note if self._place.rank == 0 else lambda *done: None)
            case "load_state":
                self._learner.load_state(*arguments)
                answer = self._learner.policy_version
            case _:
                answer = getattr(self._learner, method)(*arguments)
        return answer if self._place.rank == 0 else None

    def leave(self) -> None:
        dist.destroy_process_group()

    def _open(self, task: RankTask) -> None:
        """The learner that is named, in place of one that was there."""
        torch.manual_seed(task.seed)
        self._learner = None
        settings: LearnSettings = read_section("learn", task.learn)
        make_loss: Any = LOSSES.get_target(settings.loss.type)
        site = LearnerSite(
            model_path=task.model_path,
            model=task.model,
            loss=make_loss(settings.loss),
            temperature=task.temperature,
            seed=task.seed,
        )
        chosen: Any = LEARNERS.get_target(settings.type)
        self._learner = chosen.open(settings, site, self._team(settings))

    def _team(self, settings: LearnSettings) -> Team:
        if not isinstance(settings.parallel, FsdpRanks):
            return Replicas(self._device)
        from turnwise.learn.parallel.shards import Shards  # noqa: PLC0415 - slow to import, and not always needed

        return Shards(self._device, cpu_offload=settings.parallel.cpu_offload)


def _loopback() -> str:
    """`lo` on Linux, `lo0` elsewhere."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))

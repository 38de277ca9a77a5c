"""Where ranks run: the seam between a learner of several processes and whatever starts them.

A host starts ranks, calls a method on all of them at once, notices when one is gone, and stops them. `processes.py`
does so with processes of this machine, `cluster/ray_cluster.py` with actors of a cluster, and neither learner nor
rank changes. What runs in a rank is `rank.Rank`, made from its `RankPlace`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from turnwise.config.component import LEARNERS
from turnwise.config.schema import ModelSettings, read_section
from turnwise.config.schema_learn import FsdpRanks, LearnSettings
from turnwise.deps import LearnerSite
from turnwise.learn.parallel_context import DDPContext, ParallelContext
from turnwise.protocols import SFTConfig, Weights
from turnwise.types import Annotations, Batch, Experience, FloatArray, IntArray, StepReport

Note: TypeAlias = "Callable[..., None]"
"""Hears what the first rank tells while it still works: the steps of a warm start, weights one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Everything a rank must know before it is called: who it is, how to find the others, where it computes."""

    rank: int
    size: int
    rendezvous: str
    """Where ranks meet, as `torch.distributed.init_process_group` takes it: `file:///…` or `tcp://host:port`."""
    device: str
    """Its own, such as `cuda:1`; `cpu` for all."""
    num_threads: int
    """CPU threads of torch."""
    timeout_s: float
    """The longest that a rank waits for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What ranks learn: a `LearnerSite` in a form that reaches other processes."""

    learn: dict[str, Any]
    """The section `learn`, as `model_dump` says it: its class is made of what it names, the loss included."""
    model: ModelSettings
    model_path: str
    temperature: float
    seed: int


class RankHosts(Protocol):
    """Ranks that run. A failure of one is a failure of all: they wait for each other in every pass."""

    def call(self, method: str, *arguments: Any, on_note: Note | None = None) -> Any:
        """Call a method of `Rank` on all ranks at once; returns what the first rank returned.

        Raises what all ranks raised where it is a `TurnwiseError`, and else a LearnError that names the rank and its
        log. A rank that is gone, or does not answer in time, ends all of them.
        """
        ...

    def weights(self) -> Weights:
        """Gathered on the first rank: a copy, which later updates leave alone. Where it lies is the hosts' matter."""
        ...

    def stop(self) -> None:
        """End all ranks; once more does nothing."""
        ...


class StartRanks(Protocol):
    """Starts the ranks that `learn.parallel` asks for, and returns when all of them have met."""

    def __call__(self, settings: LearnSettings, *, run_path: Path | None) -> RankHosts: ...


def send_weights(weights: Weights, note: Note) -> None:
    """Tell each tensor; of one that has another name already, that name."""
    names: dict[tuple[int, torch.Size], str] = {}
    # Held together, so that no two of them can have had the same address.
    tensors = {name: weights[name].detach() for name in weights}
    for name, tensor in tensors.items():
        first = names.setdefault((tensor.data_ptr(), tensor.shape), name)
        if first != name:
            note(name, first, tensor.dtype, tensor.shape)
        else:
            note(name, tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), tensor.dtype, tensor.shape)


class ReceivedWeights(dict[str, Tensor]):
    """What was told so far."""

    def hear(self, name: str, told: str | NDArray[np.uint8], dtype: torch.dtype, shape: torch.Size) -> None:
        self[name] = self[told] if isinstance(told, str) else torch.from_numpy(told).view(dtype).view(shape)


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
        site = LearnerSite(
            model_path=task.model_path,
            model=task.model,
            loss=settings.loss,
            temperature=task.temperature,
            seed=task.seed,
        )
        chosen: Any = LEARNERS.get_target(settings.type)
        self._learner = chosen.open(settings, site, self._team(settings))

    def _team(self, settings: LearnSettings) -> ParallelContext:
        if not isinstance(settings.parallel, FsdpRanks):
            return DDPContext(self._device)
        from turnwise.learn.parallel_context import FSDPContext  # noqa: PLC0415 - slow to import, and not always needed

        return FSDPContext(self._device, cpu_offload=settings.parallel.cpu_offload)


def _loopback() -> str:
    """`lo` on Linux, `lo0` elsewhere."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


class ParallelLearner:
    """`learn.parallel`: the learner of `learn.type` in every rank, and nothing here but their handles."""

    @classmethod
    def open(cls, settings: LearnSettings, site: LearnerSite, start: StartRanks) -> ParallelLearner:
        hosts = start(settings, run_path=site.run_path)
        try:
            return cls(hosts, settings, site)
        except BaseException:
            hosts.stop()
            raise

    def __init__(self, hosts: RankHosts, settings: LearnSettings, site: LearnerSite) -> None:
        self._hosts = hosts
        self.policy_version = 0
        task = RankTask(
            learn=settings.model_dump(),
            model=site.model,
            model_path=site.model_path,
            temperature=site.temperature,
            seed=site.seed,
        )
        hosts.call("open", task)

    def annotate(self, experiences: Sequence[Experience]) -> Annotations:
        return self._hosts.call("annotate", list(experiences))

    def step(self, batch: Batch) -> StepReport:
        report: StepReport = self._hosts.call("step", batch)
        self.policy_version = report.policy_version
        return report

    def imitate(
        self, demonstrations: Sequence[Experience], how: SFTConfig, on_step: Callable[[int, int], None]
    ) -> float:
        return self._hosts.call("imitate", list(demonstrations), how, on_note=on_step)

    def supervise(self, demonstrations: Sequence[Experience]) -> None:
        self._hosts.call("supervise", list(demonstrations))

    def weights(self) -> Weights:
        return self._hosts.weights()

    def logprobs_of(self, experiences: Sequence[Experience], of: str = "policy") -> Sequence[FloatArray]:
        return self._hosts.call("logprobs_of", list(experiences), of)

    def score(self, token_ids: IntArray) -> FloatArray:
        return self._hosts.call("score", token_ids)

    def save_state(self, folder: Path) -> None:
        # Ranks need not work in the folder that this process works in.
        self._hosts.call("save_state", folder.resolve())

    def load_state(self, folder: Path) -> None:
        self.policy_version = self._hosts.call("load_state", folder.resolve())

    def close(self) -> None:
        """The ranks end."""
        self._hosts.stop()

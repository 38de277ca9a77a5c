"""Where ranks run: the seam between a learner of several processes and whatever starts them.

A host starts ranks, calls a method on all of them at once, notices when one is gone, and stops them. `processes.py`
does so with processes of this machine, `loop/cluster/ray_ranks.py` with actors of a cluster, and neither learner nor
rank changes. What runs in a rank is `rank.Rank`, made from its `RankPlace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from turnwise.config.schema import ModelSettings
from turnwise.config.schema_learn import LearnSettings
from turnwise.protocols import Weights

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

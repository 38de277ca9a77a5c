"""`cluster`: on which machines a run is played and learnt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from turnwise.config.settings import Settings


class NoCluster(Settings):
    type: Literal["none"] = "none"
    """Everything is in the process of the run."""


class RayCluster(Settings):
    type: Literal["ray"]
    """Explorers, learner and buffer are Ray actors, on one machine or many."""
    address: str | None = None
    """Of a cluster that is running: 'auto' or host:port. Null: a local one is started, and stopped with the run."""
    explorers: PositiveInt = 1
    """Actors that play, each with an engine and environments of its own; `turnwise explorers RUN N` changes it while
    the run goes on. The groups of a rollout are dealt out among them."""
    explorer_cpus: PositiveFloat = 1.0
    """Cores that Ray sets aside for each explorer; on a local cluster all share those of the machine."""
    explorer_gpus: float = Field(default=0.0, ge=0)
    """GPUs of each explorer, for its engine."""
    learner_cpus: PositiveFloat = 1.0
    """Cores that Ray sets aside for the learner; with learn.parallel, for each of its ranks."""
    learner_gpus: float = Field(default=0.0, ge=0)
    """GPUs of the learner; with learn.parallel, of each of its ranks. 0: ranks compute on the CPU."""
    start_timeout_s: PositiveFloat = 300.0
    """Longest wait for a place in the cluster, and for an actor there to begin."""

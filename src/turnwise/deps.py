"""What the parts that a config can name are opened for.

Engine, learner, buffer and weight transport are opened by a class method from their own section of the settings and a
*site*: `Class.open(settings, site)`. A site holds what the rest of the run decides, and nothing of the part itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.config.kinds import GroupPriority
from turnwise.config.schema import ModelSettings
from turnwise.protocols import ChatTemplate, PolicyLoss

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSite:
    """What an engine is opened for: `engine.type` names a class with `open(settings, site) -> Engine`."""

    model_path: str
    """A model folder or hub name; an engine that asks a server may never load it."""
    dtype: str
    """`model.dtype`: how weights are held."""
    template: ChatTemplate
    """Whose tokens end a reply."""
    policy_version: int = 0
    """Which policy the model is."""
    run_path: Path | None = None
    """The directory of the run, where there is one."""
    model: PreTrainedModel | None = None
    """An already loaded model to sample from in place, where learner and engine share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSite:
    """What a buffer is opened for: `buffer.type` names a class with `open(settings, site) -> Buffer`."""

    priority: GroupPriority
    """What `buffer.priority` chose."""
    run_path: Path | None = None
    """The directory of the run, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSite:
    """What a learner is opened for: `learn.type` names a class with `open(settings, site) -> Learner`."""

    model_path: str
    """A model folder or hub name."""
    model: ModelSettings
    """The section `model`."""
    loss: PolicyLoss
    """What `learn.loss` chose."""
    temperature: float
    """At which tokens are sampled, and must be scored."""
    seed: int
    run_path: Path | None = None
    """The directory of the run, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSite:
    """What a weight transport is opened for: `sync.method` names a class with `open(settings, site) -> Mailbox`."""

    ring: Callable[[], None]
    """Wakes whoever waits in this process."""
    run_path: Path | None = None
    """The directory of the run, where there is one."""

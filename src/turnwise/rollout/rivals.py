"""Policies that are met in games and never trained.

A rival has an engine, words and a manner of its own. What it samples is recorded in a handle of its own, which goes
with the game: no row, no mask and no reward of it reaches a trajectory. Who is met is drawn for a whole task, so that
siblings are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwise.config.schema import ContextSettings
from turnwise.protocols import ChatTemplate, Engine
from turnwise.rollout.model_handle import ModelHandle
from turnwise.types import Sampling, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A policy that stays as it is."""

    name: str
    engine: Engine
    """Its own: nobody gives it other weights."""
    template: ChatTemplate
    context: ContextSettings | None
    """How it is talked to; None: as the policy is that it meets."""
    temperature: float

    def open_model(self, context: ContextSettings, *, seed: int, name: str) -> ModelHandle:
        """It, for one game; `seed` and `name` choose its dice."""
        return ModelHandle(
            self.engine,
            self.template,
            sampling=Sampling(temperature=self.temperature, max_new_tokens=context.max_response_tokens),
            max_tokens=context.max_tokens,
            seed=seed,
            name=name,
        )


class Rivals(Protocol):
    """Whom the policy meets, task by task: the same for equal seeds, tasks and rollouts."""

    async def draw(self, tasks: Sequence[Task], rollout: int) -> Sequence[Rival | None]:
        """For each task whoever all its siblings meet; None: each other. It may wait, within a deadline."""
        ...

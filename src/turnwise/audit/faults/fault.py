"""One thing that can be wrong in a run: which part it is put around, and in which setting it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Wrap: TypeAlias = Callable[[Any], Any]
"""A part in, a stand-in that keeps its protocol out; most of that is the part's own, which no type can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Each of the parts is given, and what comes back stands in its place."""

    name: str
    room: str
    """Where such a mistake would be made."""
    overrides: tuple[str, ...] = ()
    """Settings of the run in which it shows, beside those of all of them."""
    engine: Wrap | None = None
    collector: Wrap | None = None
    buffer: Wrap | None = None
    credit: Wrap | None = None
    learner: Wrap | None = None
    patch: tuple[str, str, Wrap] | None = None
    """A module, a function in it, and what takes the function's place while the run lasts."""
    at_resume: bool = False
    """Whether it shows only where a run goes on from a checkpoint."""


class Stand:
    """Stands in for a part: whatever a subclass does not do otherwise, the part does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

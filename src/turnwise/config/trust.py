"""Code that a config names, and whether it may be run: looking at a stranger's file must not run what it names.

A config can name classes and functions by their module (`env.type: package.module:Class`), and importing a module runs
it. Inside `only_looking` none is imported that turnwise does not ship: whoever asks for one gets `DistrustError`, and
the name is kept, so that it can be told what was not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

from turnwise.errors import TurnwiseError

T = TypeVar("T")


class DistrustError(TurnwiseError):
    """What a config names was not imported or asked, because nobody has said that it may be."""


_unseen: ContextVar[dict[str, None] | None] = ContextVar("unseen", default=None)


@contextmanager
def only_looking(*, trusts: bool = False) -> Iterator[dict[str, None]]:
    """The names that were left alone inside, in order; with `trusts` none is."""
    unseen: dict[str, None] = {}
    token = _unseen.set(None if trusts else unseen)
    try:
        yield unseen
    finally:
        _unseen.reset(token)


def as_far_as_seen(found: Iterable[T]) -> Iterator[T]:
    """What there is to say, until it would take what is not looked at."""
    with suppress(DistrustError):
        yield from found


def refuse_stranger(name: str) -> None:
    """Raise where only a look is taken, and remember the name."""
    unseen = _unseen.get()
    if unseen is not None:
        unseen[name] = None
        raise DistrustError(f"'{name}' was not looked at: that would run it. Read it, then give --trust.")

"""A token sequence that an engine works on, and how sequences are laid side by side.

It knows nothing of requests, sampling or keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True, eq=False)
class Row:
    """`ids[:num_cached]` have their keys and values in the pool, in `blocks`."""

    ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_published: int = 0
    """So many blocks from the start can be found by others."""
    is_busy: bool = False
    """Whether a request is running on it."""

    @property
    def start(self) -> int:
        """The first token to compute: at least the last one, whose logits choose the next."""
        return min(self.num_cached, len(self.ids) - 1)

    @property
    def num_new(self) -> int:
        return len(self.ids) - self.start


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def pad_right(sequences: Sequence[list[int]]) -> Tensor:
    width = max(len(ids) for ids in sequences)
    return torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences])

"""Linear layers that read the same input, joined into one matrix, with the low-rank adapters that stand beside them.

In: linear layers. Out: one callable whose result holds theirs side by side. Their own parameters become views into the
joined matrices, so that new weights reach both. Adapters are added as they are, never merged: whoever trains them
beside frozen weights can share one copy of those with whoever samples. It knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class _LowRank:
    """The adapter of one of the layers: which columns of the input's low-rank image it takes and where it adds."""

    ranks: slice
    outputs: slice
    up: Tensor
    scale: float


class Projection:
    """`y = x W + b`, and where layers are adapted `+ scale (x A) B` in their part of y."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        plain: list[Any] = [getattr(layer, "base_layer", layer) for layer in layers]
        self.weight = _joined([layer.weight for layer in plain])
        self.bias = _joined([layer.bias for layer in plain]) if plain[0].bias is not None else None
        adapters = [_adapter(layer) for layer in layers]
        downs = [down for down, _, _ in filter(None, adapters)]
        self._down = _joined(downs) if downs else None
        self._low_ranks = list(_place(adapters, [len(layer.weight) for layer in plain]))

    def __call__(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        if self._down is not None:
            inner = F.linear(x, self._down).flatten(0, -2)
            rows = y.view(-1, y.shape[-1])
            for part in self._low_ranks:
                rows[:, part.outputs].addmm_(inner[:, part.ranks], part.up.t(), alpha=part.scale)
        return y


def _adapter(layer: Any) -> tuple[Tensor, Tensor, float] | None:
    """Down and up matrix and scale of an adapted layer, as peft keeps them."""
    if not hasattr(layer, "lora_A"):
        return None
    (name,) = layer.active_adapters
    return layer.lora_A[name].weight, layer.lora_B[name].weight, float(layer.scaling[name])


def _place(adapters: Sequence[tuple[Tensor, Tensor, float] | None], sizes: Sequence[int]) -> Iterator[_LowRank]:
    rank = output = 0
    for adapter, size in zip(adapters, sizes, strict=True):
        if adapter is not None:
            down, up, scale = adapter
            yield _LowRank(slice(rank, rank + len(down)), slice(output, output + size), up, scale)
            rank += len(down)
        output += size


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One tensor for all of them, of which each parameter becomes a part: new weights reach both."""
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        part.data = view
    return joined

"""All weights of a model in one piece of memory, so that they reach another process as one.

In: weights by name. Out: their bytes end to end, and where each begins. Names that share a tensor share its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.protocols import Weights

_ALIGNED = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlatWeights:
    memory: Tensor
    """Bytes."""
    places: Mapping[str, tuple[int, tuple[int, ...], torch.dtype]]
    """Where each begins, its shape and its type."""

    def views(self) -> dict[str, Tensor]:
        """The tensors where they lie; nothing is copied."""
        found: dict[str, Tensor] = {}
        for name, (start, shape, dtype) in self.places.items():
            num_bytes = torch.Size(shape).numel() * dtype.itemsize
            found[name] = self.memory[start : start + num_bytes].view(dtype).view(shape)
        return found


def flatten(weights: Weights) -> FlatWeights:
    places: dict[str, tuple[int, tuple[int, ...], torch.dtype]] = {}
    starts: dict[tuple[int, torch.Size], int] = {}
    # Held together, so that no two of them can have had the same address.
    tensors = {name: weights[name].detach() for name in weights}
    end = 0
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in starts:
            starts[key], end = end, end + -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        places[name] = (starts[key], tuple(tensor.shape), tensor.dtype)
    flat = FlatWeights(memory=torch.empty(end, dtype=torch.uint8), places=places)
    for name, view in flat.views().items():
        view.copy_(tensors[name])
    return flat

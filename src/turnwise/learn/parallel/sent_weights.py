"""Weights on their way from the first rank to the learner that the loop holds: tensor by tensor, as plain bytes.

In: weights by name. Out: the same in another process. Nothing but one tensor is in memory beside the two, and no shared
memory is needed, of which a container may have little. Names that share a tensor share it there too.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.learn.parallel.hosts import Note
from turnwise.protocols import Weights


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

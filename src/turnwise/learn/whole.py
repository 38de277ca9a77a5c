"""Tensors that may lie in pieces over the ranks of a team, read and written as a whole.

In: a tensor, plain or in pieces (`DTensor`). Out: the whole of it, or its own piece of a whole. Reading one that lies
in pieces asks all ranks: each must ask for the same ones in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def read_whole(tensor: Tensor) -> Tensor:
    """All of it, on the device of this rank's piece."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def piece_like(tensor: Tensor, whole: Tensor) -> Tensor:
    """This rank's piece of a whole that every rank has, laid out as `tensor` is."""
    if whole.shape != tensor.shape:
        raise ValueError(f"a tensor of shape {tuple(whole.shape)} given; expected {tuple(tensor.shape)}")
    whole = whole.to(device=tensor.device, dtype=tensor.dtype)
    if not isinstance(tensor, DTensor):
        return whole
    # Without a source rank nothing is sent: each cuts its own piece out of what it has.
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def write_whole(tensor: Tensor, whole: Tensor) -> None:
    """Make it what `whole` is; every rank writes its own piece."""
    tensor.copy_(piece_like(tensor, whole))

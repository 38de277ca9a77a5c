"""The processes that learn together, as the learner in each of them sees the others.

In: rows, numbers, gradients of this rank. Out: its share of the rows, sums over all ranks. A learner is written for a
team and does not know its size: a team of one does nothing. It knows nothing of losses, processes or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from turnwise.learn.pack import MicroBatch, blank_micro_batch, micro_batches
from turnwise.protocols import Weights
from turnwise.types import Batch

Number = TypeVar("Number", bound=np.generic)

_BUCKET_NUMBERS = 1 << 24
"""Gradients summed at a time: their copy is small beside a model, and large enough for a network."""


class Team:
    """One process: everything is its own."""

    rank = 0
    size = 1
    is_sharded = False
    """Whether weights lie in pieces."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        """Where this rank computes."""

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files, and counts what all ranks count alike."""
        return self.rank == 0

    @property
    def loads_on(self) -> torch.device:
        """Where a model is put before `hold`."""
        return self.device

    def hold(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Take a module over before its first pass; it computes in `dtype`. Its parameters may be others afterwards."""

    def micro_batches(
        self, batch: Batch, rows: NDArray[np.int64], max_tokens: int, *, shares_prompts: bool
    ) -> Iterator[MicroBatch]:
        """Those of this rank's share of the rows, and blank ones for as long as another rank still has some."""
        return micro_batches(batch, rows, max_tokens, self.device, shares_prompts=shares_prompts)

    def sum_array(self, array: NDArray[Number]) -> NDArray[Number]:
        """The sum over all ranks."""
        return array

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sums over all ranks; a rank may lack a name."""
        return dict(numbers)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Before an optimizer step: each rank has the gradient of its share, and then that of all."""

    def gather(self, weights: Weights, model: nn.Module) -> Weights:
        """Whole tensors of a model, on the first rank alone; nothing elsewhere."""
        return weights


class Replicas(Team):
    """`learn.parallel: {type: ddp}`: every rank holds all weights, and gradients are summed once per optimizer step.

    The process group is there already. Ranks of a team make equal passes in equal order, blank ones included, so that
    they agree about which parameters have a gradient.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def micro_batches(
        self, batch: Batch, rows: NDArray[np.int64], max_tokens: int, *, shares_prompts: bool
    ) -> Iterator[MicroBatch]:
        own = share_rows(batch.row_lengths[rows], rows, rank=self.rank, num_ranks=self.size)
        parts = super().micro_batches(batch, own, max_tokens, shares_prompts=shares_prompts)
        found = list(parts) if len(own) else []
        most = torch.tensor(len(found), device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        yield from found
        for _ in range(int(most) - len(found)):
            yield blank_micro_batch(self.device)

    def sum_array(self, array: NDArray[Number]) -> NDArray[Number]:
        tensor = torch.tensor(array, device=self.device)
        dist.all_reduce(tensor)
        return tensor.cpu().numpy()

    def sum_numbers(self, numbers: Mapping[str, float]) -> dict[str, float]:
        by_rank: list[Mapping[str, float]] = [{}] * self.size
        dist.all_gather_object(by_rank, dict(numbers))
        names = dict.fromkeys(name for of_rank in by_rank for name in of_rank)
        return {name: sum(of_rank.get(name, 0.0) for of_rank in by_rank) for name in names}

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat)
            for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def gather(self, weights: Weights, model: nn.Module) -> Weights:
        return weights if self.is_first else {}


def share_rows(lengths: NDArray[np.int64], rows: NDArray[np.int64], *, rank: int, num_ranks: int) -> NDArray[np.int64]:
    """Those of the rows that are this rank's, in their order: long rows first, each to whoever has the least so far."""
    loads = np.zeros(num_ranks, dtype=np.int64)
    owner = np.zeros(len(rows), dtype=np.int64)
    for place in np.argsort(-lengths, kind="stable"):
        owner[place] = loads.argmin()
        loads[owner[place]] += lengths[place]
    return rows[owner == rank]


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients of one type together, as many as fit."""
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        bucket: list[Tensor] = []
        for gradient in (g for g in gradients if g.dtype == dtype):
            if bucket and sum(g.numel() for g in bucket) + gradient.numel() > _BUCKET_NUMBERS:
                yield bucket
                bucket = []
            bucket.append(gradient)
        yield bucket

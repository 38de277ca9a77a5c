"""The processes that learn together, as the learner in each of them sees the others.

In: rows, numbers, gradients of this rank. Out: its share of the rows, sums over all ranks. A learner is written for a
team and does not know its size: a team of one does nothing. It knows nothing of losses, processes or files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.errors import ConfigError
from turnwise.infra.process_state import return_large_blocks_at_once
from turnwise.learn.pack import MicroBatch, blank_micro_batch, micro_batches
from turnwise.models.load import ValueHead, chosen_device, read_whole
from turnwise.protocols import Weights
from turnwise.types import Batch

Number = TypeVar("Number", bound=np.generic)

_BUCKET_NUMBERS = 1 << 24
"""Gradients summed at a time: their copy is small beside a model, and large enough for a network."""


class ParallelContext:
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
        self, batch: Batch, rows: NDArray[np.int64], max_tokens: int, *, enable_prefix_sharing: bool
    ) -> Iterator[MicroBatch]:
        """Those of this rank's share of the rows, and blank ones for as long as another rank still has some."""
        return micro_batches(batch, rows, max_tokens, self.device, enable_prefix_sharing=enable_prefix_sharing)

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


class DDPContext(ParallelContext):
    """`learn.parallel: {type: ddp}`: every rank holds all weights, and gradients are summed once per optimizer step.

    The process group is there already. Ranks of a team make equal passes in equal order, blank ones included, so that
    they agree about which parameters have a gradient.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def micro_batches(
        self, batch: Batch, rows: NDArray[np.int64], max_tokens: int, *, enable_prefix_sharing: bool
    ) -> Iterator[MicroBatch]:
        own = shard_rows(batch.row_lengths[rows], rows, rank=self.rank, num_ranks=self.size)
        parts = super().micro_batches(batch, own, max_tokens, enable_prefix_sharing=enable_prefix_sharing)
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


def shard_rows(lengths: NDArray[np.int64], rows: NDArray[np.int64], *, rank: int, num_ranks: int) -> NDArray[np.int64]:
    """The rows of this rank, in their order: long rows first, each to the rank with the fewest tokens so far."""
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


class FSDPContext(DDPContext):
    """`learn.parallel: {type: fsdp}`."""

    is_sharded = True

    def __init__(self, device: torch.device, *, cpu_offload: bool = False) -> None:
        super().__init__(device)
        self._mesh = init_device_mesh(device.type, (self.size,))
        is_on_gpu = device.type != "cpu"
        if not is_on_gpu:
            # Layers are put together and let go all the time.
            return_large_blocks_at_once()
        self._offload = CPUOffloadPolicy(pin_memory=is_on_gpu) if cpu_offload else OffloadPolicy()

    @property
    def loads_on(self) -> torch.device:
        """A whole model may not fit on a device that its pieces fit on."""
        return torch.device("cpu")

    def hold(self, module: nn.Module, dtype: torch.dtype) -> None:
        mixed = MixedPrecisionPolicy()
        if dtype != torch.float32:
            mixed = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        for inner in [m for m in module.modules() if isinstance(m, ValueHead)]:
            # Values are float32 whatever the trunk computes in.
            self._shard(inner, MixedPrecisionPolicy())
        for layer in [m for m in module.modules() if isinstance(m, GradientCheckpointingLayer)]:
            self._shard(layer, mixed)
        self._shard(module, mixed)

    def _shard(self, module: nn.Module, mixed: MixedPrecisionPolicy) -> None:
        # The outermost module lets go of its weights too: else an optimizer step would pass it by.
        fully_shard(module, mesh=self._mesh, reshard_after_forward=True, mp_policy=mixed, offload_policy=self._offload)
        assert isinstance(module, FSDPModule)
        # Losses are divided by counts over all ranks already, so gradients are sums.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)

    def sum_gradients(self, parameters: object) -> None:
        """They were summed in the backward pass, piece by piece."""

    def gather(self, weights: Weights, model: nn.Module) -> Weights:
        found: dict[str, Tensor] = {}
        first_names = _first_names(model)
        for name in weights:
            known = found.get(first_names.get(name, name))
            whole = known if known is not None else read_whole(weights[name])
            # Others take part and keep nothing.
            found[name] = whole.cpu() if self.is_first else whole.new_empty(0)
        return found if self.is_first else {}


def _first_names(model: nn.Module) -> dict[str, str]:
    """Under which name a parameter that has several stands first."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


def rank_devices(name: str, num_ranks: int) -> list[str]:
    """The devices behind `learn.device`, one per rank."""
    device = chosen_device(name, "learn.device")
    if device.type == "cpu":
        return ["cpu"] * num_ranks
    count = torch.cuda.device_count()
    if num_ranks > count:
        raise ConfigError(
            f"learn.parallel.ranks: {num_ranks} given; this machine has {count} GPUs and each rank needs its own. "
            f"Set it to {count} or fewer, or learn.device=cpu."
        )
    return [f"{device.type}:{rank}" for rank in range(num_ranks)]


def threads_per_rank(num_ranks: int) -> int:
    """The cores that this process may use, divided: ranks that wait for each other must not fight for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // num_ranks)

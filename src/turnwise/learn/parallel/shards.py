"""The team whose weights, gradients and optimizer lie in pieces: FSDP2 of torch.

In: the modules of a learner. Out: the same modules, each parameter a `DTensor` of which this rank holds its piece. A
module is put together for one pass and let go after it, so what is read or written between passes is the pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.infra.process_state import return_large_blocks_at_once
from turnwise.learn.parallel.team import Replicas
from turnwise.models.load import ValueHead, read_whole
from turnwise.protocols import Weights


class Shards(Replicas):
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

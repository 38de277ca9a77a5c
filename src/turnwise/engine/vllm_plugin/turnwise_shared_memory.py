"""A weight-transfer backend of vLLM's own kind: weights out of files in memory, which the trainer's process holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class SharedMemoryInit(WeightTransferInitInfo):
    """Nobody has to be met before the first update."""


@dataclass
class SharedMemoryUpdate(WeightTransferUpdateInfo):
    path: str = ""
    """A safetensors file with a part of the weights, under the names of the plain model."""


class SharedMemoryTransfer(WeightTransferEngine):
    """Loads what lies at a path of this machine, through vLLM's own layerwise reloading."""

    init_info_cls = SharedMemoryInit
    update_info_cls = SharedMemoryUpdate

    def init_transfer_engine(self, init_info: SharedMemoryInit) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        # The base class waits for an accelerator, which a CPU has not.
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedMemoryUpdate) -> None:
        self.model.load_weights(iter(load_file(update_info.path).items()))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu" and self.model.config.tie_word_embeddings:
            # On CPUs the head is packed from the embedding when it is loaded; it would silently stay the old one.
            dispatch_cpu_unquantized_gemm(self.model.lm_head, remove_weight=False)

    def shutdown(self) -> None:
        pass

"""How a loaded model holds its numbers and its activations, and where made models are kept.

It knows nothing of batches, losses or adapters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.errors import ModelError


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold the parameters in another type. Buffers stay: positions counted in bfloat16 would be wrong ones."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Keep the inputs of each layer alone for the backward pass. Call it last: `eval()` switches it off again."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers or not model.supports_gradient_checkpointing:
        raise ModelError(
            f"model.gradient_checkpointing is true and {type(model).__name__} has no layers that can be computed "
            "again. Set it to false."
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_run_checkpointed, layer, layer._gradient_checkpointing_func)
        # transformers checkpoints in training mode alone. Only the layer itself says so, and never while it computes.
        layer.training = True


def _run_checkpointed(layer: nn.Module, run: Callable[..., Any], forward: Callable[..., Any], *inputs: Any) -> Any:
    def forward_without_dropout(*inputs: Any) -> Any:
        layer.training = False
        try:
            return forward(*inputs)
        finally:
            layer.training = True

    return run(forward_without_dropout, *inputs)


def cache_folder() -> Path:
    """Where made models are kept: `TURNWISE_CACHE`, or `.cache/turnwise` in the home folder."""
    return Path(os.environ.get("TURNWISE_CACHE") or Path.home() / ".cache" / "turnwise")

"""How a loaded model holds its numbers and its activations, and where made models are kept.

It knows nothing of batches, losses or adapters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from turnwise.errors import ModelError


def cast_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold the parameters in another type. Buffers stay: positions counted in bfloat16 would be wrong ones."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def cast_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold what is not trained in `dtype`, and what is trained in float32: small updates must not be rounded away."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32 if parameter.requires_grad else dtype)


def checkpoint_gradients(model: PreTrainedModel, *, above_tokens: int = 0) -> None:
    """Keep the inputs of each layer alone for the backward pass, where a forward pass has more tokens than that."""
    layers = checkpointed_layers(model)
    if not layers:
        raise ModelError(
            f"model.gradient_checkpointing is true and {type(model).__name__} has no layers that can be computed "
            "again. Set it to false."
        )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in layers:
        layer._gradient_checkpointing_func = partial(_run_checkpointed, layer, layer._gradient_checkpointing_func)
    trunk = cast(nn.Module, model.base_model)
    trunk.register_forward_pre_hook(_CheckpointAbove(layers, above_tokens), with_kwargs=True)


def checkpointed_layers(model: PreTrainedModel) -> list[Any]:
    """The layers that can be computed again; none where the model does not know how."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    return layers if model.supports_gradient_checkpointing else []


class _CheckpointAbove:
    """Before each forward pass: checkpoint it or not. An object, so that a copy of the model has one of its own."""

    def __init__(self, layers: list[Any], above_tokens: int) -> None:
        self._layers = layers
        self._above_tokens = above_tokens

    def __call__(self, trunk: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        given: Any = named.get("input_ids", named.get("inputs_embeds"))
        num_tokens = given.shape[0] * given.shape[1] if given is not None else 0
        is_wanted = torch.is_grad_enabled() and num_tokens > self._above_tokens
        for layer in self._layers:
            # transformers checkpoints in training mode alone. Only the layer itself says so, and never as it computes.
            layer.training = is_wanted


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

"""Model folders in, models out; and how a loaded model holds its numbers and its activations.

It knows nothing of batches, losses or adapters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from turnwise.errors import ModelError


def load_model(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal language model from a local folder or a hub name, in `dtype` whatever its files are in."""
    transformers_logging.disable_progress_bar()
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"model.path '{path}' cannot be loaded as a causal language model: {first_line} "
            "Give a Hugging Face model folder, a hub name, or 'tiny' for the built-in model."
        ) from error
    return cast(nn.Module, model).to(best_device())  # type: ignore[return-value]


def torch_dtype(name: str) -> torch.dtype:
    """The type behind `model.dtype`."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


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


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cache_folder() -> Path:
    """Where made models are kept: `TURNWISE_CACHE`, or `.cache/turnwise` in the home folder."""
    return Path(os.environ.get("TURNWISE_CACHE") or Path.home() / ".cache" / "turnwise")

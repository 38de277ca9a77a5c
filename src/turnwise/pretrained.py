"""Model folders in, causal language models out: the one way in which engines and learners load a model."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from turnwise.errors import ConfigError, ModelError


def load_model(
    path: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> PreTrainedModel:
    """A causal language model from a local folder or a hub name, in `dtype` whatever its files are in.

    Without a device it goes where this machine computes best.
    """
    transformers_logging.disable_progress_bar()
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"model.path '{path}' cannot be loaded as a causal language model: {first_line} "
            "Give a Hugging Face model folder, a hub name, or 'tiny' for the built-in model."
        ) from error
    _leave_files(model)
    _refuse_broken_weights(model, path)
    return cast(nn.Module, model).to(device or best_device())  # type: ignore[return-value]


def _leave_files(model: nn.Module) -> None:
    """Weights in memory of their own: as a view into its file, each one that changes would be held twice."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _refuse_broken_weights(model: nn.Module, path: str | Path) -> None:
    """A model with one weight that is no number says nothing sensible, and every number after it is none either."""
    # A sum is one pass without a copy; only where it is no number is every weight looked at.
    sums = ((name, tensor) for name, tensor in model.state_dict().items() if not torch.isfinite(tensor.sum()))
    broken = [name for name, tensor in sums if not torch.isfinite(tensor).all()]
    if broken:
        raise ModelError(
            f"model.path '{path}' has weights that are not finite, in {len(broken)} of {len(model.state_dict())} "
            f"tensors: {', '.join(broken[:3])}{' …' if broken[3:] else ''}. It can neither play nor learn. Give an "
            "earlier checkpoint, or load the files anew."
        )


def torch_dtype(name: str) -> torch.dtype:
    """The type behind `model.dtype`."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def chosen_device(name: str, path: str) -> torch.device:
    """The device behind a setting such as `engine.device`; `path` is where it stands."""
    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    # torch is built without the device (AssertionError, NotImplementedError), or there is none of that number.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first_line = str(error).splitlines()[0]
        raise ConfigError(
            f"{path} = '{name}' given; this machine has no such device: {first_line} Give 'auto' for a GPU where there "
            "is one, 'cpu', or a device that torch knows here."
        ) from error
    return device


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

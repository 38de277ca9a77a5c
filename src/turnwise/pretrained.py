"""Model folders in, causal language models out: the one way in which engines and learners load a model."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
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


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

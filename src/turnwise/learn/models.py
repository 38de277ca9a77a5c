"""Model folders in, models out."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from turnwise.errors import ModelError


def load_model(path: str | Path) -> PreTrainedModel:
    """A causal language model in float32, from a local folder or a hub name."""
    transformers_logging.disable_progress_bar()
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(
            f"model.path '{path}' cannot be loaded as a causal language model: {first_line} "
            "Give a Hugging Face model folder, a hub name, or 'tiny' for the built-in model."
        ) from error
    return cast(nn.Module, model).to(best_device())  # type: ignore[return-value]


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

"""Everything a learner needs to go on: a Hugging Face folder in `policy/`, and the rest of the state beside it.

Written to a temporary name and renamed, so that a checkpoint is either whole or not there. Nothing is unpickled:
tensors as safetensors, optimizer state through `torch.load(weights_only=True)`, numbers as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from turnwise.errors import RunError
from turnwise.learn.trainer import Trainer

_DAMAGED = (OSError, EOFError, LookupError, TypeError, ValueError, RuntimeError, UnpicklingError, SafetensorError)
"""What reading a file that is missing, cut off or something else can raise."""


def save_checkpoint(
    folder: Path, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, progress: Mapping[str, object]
) -> None:
    """`progress` is the loop's own state: steps done, seed counters, token counts."""
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    trainer.actor.model.save_pretrained(unfinished / "policy")
    tokenizer.save_pretrained(unfinished / "policy")
    if trainer.critic is not None:
        save_file(
            {k: v.contiguous().clone() for k, v in trainer.critic.state_dict().items()},
            unfinished / "critic.safetensors",
        )
    if trainer.reference is not None:
        trainer.reference.model.save_pretrained(unfinished / "reference")
    torch.save(trainer.optimizer.state_dict(), unfinished / "optimizer.pt")
    state = {
        "policy_version": trainer.policy_version,
        "rng": trainer.rng.bit_generator.state,
        "kl_coef": trainer.kl_price.coef if trainer.kl_price is not None else None,
        "progress": dict(progress),
    }
    (unfinished / "state.json").write_text(json.dumps(state, indent=2))
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def load_checkpoint(folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Put the learner back to where it was; returns the loop's own state. The policy is loaded with the model."""
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
        trainer.policy_version = state["policy_version"]
        trainer.rng.bit_generator.state = state["rng"]
        if trainer.kl_price is not None:
            trainer.kl_price.coef = state["kl_coef"]
        trainer.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        if trainer.critic is not None:
            trainer.critic.load_state_dict(load_file(folder / "critic.safetensors"))
        if trainer.reference is not None:
            trainer.reference.model.load_state_dict(load_file(folder / "reference" / "model.safetensors"), strict=False)
        progress: dict[str, Any] = state["progress"]
    except _DAMAGED as error:
        raise RunError(f"checkpoint {folder} cannot be resumed: {type(error).__name__}: {error}") from error
    return progress

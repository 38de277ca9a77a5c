"""Everything a learner needs to go on: a Hugging Face folder in `policy/`, and the rest of the state beside it.

`policy/` is a plain model in any case. Where adapters are trained they are merged there, and a run goes on from
`model.path` and the adapters beside it, for what was merged cannot be taken apart again. A checkpoint is
whole or not there. Nothing is unpickled: tensors as safetensors, optimizer state as `optimizer_state.py` says, numbers
as JSON. All ranks of a team are asked, for tensors may lie in pieces on them; the first one writes, and a team of any
other size goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from transformers import PreTrainedModel

from turnwise.errors import RunError
from turnwise.infra.parsing import parse_json
from turnwise.learn.optimizer import read_optimizer, write_optimizer
from turnwise.learn.parallel_context import ParallelContext
from turnwise.learn.policy import PolicyModel
from turnwise.models.adapters import has_adapter
from turnwise.models.load import atomic_write, load_model, write_weights
from turnwise.protocols import Weights

if TYPE_CHECKING:
    from turnwise.learn.trainer import Trainer

_DAMAGED = (
    OSError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
    UnpicklingError,
    SafetensorError,
    CheckpointException,
)
"""What reading a file that is missing, cut off or something else can raise."""
_ADAPTER, _BASE, _CRITIC = "adapter.safetensors", "base.safetensors", "critic.safetensors"


def write_state(trainer: Trainer, folder: Path) -> None:
    model, team = trainer.actor.model, trainer.team
    _write_model(folder / "policy", model, trainer.weights(), team)
    if has_adapter(model):
        _save(folder / _ADAPTER, model, team, is_trained=True)
    if trainer.is_base_folded:
        _save(folder / _BASE, model, team, is_trained=False)
    if trainer.critic is not None:
        _save(folder / _CRITIC, trainer.critic, team, is_trained=True)
    if isinstance(trainer.reference, PolicyModel):
        frozen = trainer.reference.model
        with trainer.reference.loaded():
            _write_model(folder / "reference", frozen, team.gather(frozen.state_dict(), frozen), team)
    write_optimizer(trainer.optimizer, folder, team)
    state = {
        "policy_version": trainer.policy_version,
        "rng": trainer.rng.bit_generator.state,
        "kl_coef": trainer.kl_price.coef if trainer.kl_price is not None else None,
    }
    if team.is_first:
        (folder / "learner.json").write_text(json.dumps(state, indent=2))


def _write_model(folder: Path, model: PreTrainedModel, weights: Weights, team: ParallelContext) -> None:
    """What `save_pretrained` writes, without a second copy of all weights in memory."""
    if not team.is_first:
        return
    folder.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    write_weights(folder / "model.safetensors", weights)


def resumed_model(folder: Path) -> Path | None:
    """The model folder a learner is opened from before `load_state`; None: `model.path`, as at the start."""
    return None if (folder / _ADAPTER).is_file() else folder / "policy"


def read_state(trainer: Trainer, folder: Path) -> None:
    """Put a learner back to where it was, its policy included."""
    try:
        _read_models(trainer, folder)
        state: dict[str, Any] = parse_json((folder / "learner.json").read_text())
        trainer.policy_version = state["policy_version"]
        trainer.rng.bit_generator.state = state["rng"]
        if trainer.kl_price is not None:
            trainer.kl_price.coef = state["kl_coef"]
        read_optimizer(trainer.optimizer, folder, trainer.team)
    except _DAMAGED as error:
        raise RunError(f"checkpoint {folder} cannot be resumed: {type(error).__name__}: {error}") from error


def _read_models(trainer: Trainer, folder: Path) -> None:
    model = trainer.actor.model
    if has_adapter(model):
        _load(folder / _ADAPTER, model, is_trained=True)
        trainer.is_base_folded = (folder / _BASE).is_file()
    else:
        stored = load_model(folder / "policy", dtype=model.dtype, device=trainer.team.loads_on)
        _copy(stored.state_dict(), model.state_dict())
    if trainer.is_base_folded:
        _load(folder / _BASE, model, is_trained=False)
    if trainer.critic is not None:
        _load(folder / _CRITIC, trainer.critic, is_trained=True)
    if isinstance(trainer.reference, PolicyModel):
        with trainer.reference.loaded(changing=True):
            _copy(load_file(folder / "reference" / "model.safetensors"), trainer.reference.model.state_dict())


def _parameters(module: nn.Module, *, is_trained: bool) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad == is_trained}


def _save(file: Path, module: nn.Module, team: ParallelContext, *, is_trained: bool) -> None:
    whole = team.gather(_parameters(module, is_trained=is_trained), module)
    if team.is_first:
        save_file({name: tensor.contiguous() for name, tensor in whole.items()}, file)


def _load(file: Path, module: nn.Module, *, is_trained: bool) -> None:
    own, stored = _parameters(module, is_trained=is_trained), load_file(file)
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in stored.items()}:
        raise ValueError(f"{file.name} holds other parameters than the learner has; were the settings changed?")
    _copy(stored, own)


def _copy(stored: Weights, own: Weights) -> None:
    for name, tensor in stored.items():
        atomic_write(own[name], tensor)


_MAX_VALUES = 4096
"""Of one tensor."""


def digest_state(learner: Any) -> dict[str, int]:
    """Policy, critic, reference and the optimizer's moments, as far as there are any."""
    digests = {}
    for name in ("model", "critic"):
        if isinstance(module := getattr(learner, name, None), torch.nn.Module):
            digests[name] = digest_tensors(module.state_dict().values())
    reference = getattr(learner, "reference", None)
    if isinstance(module := getattr(reference, "model", None), torch.nn.Module):
        # One that lies in a file has no weights but while it is asked.
        with getattr(reference, "loaded", nullcontext)():
            digests["reference"] = digest_tensors(module.state_dict().values())
    optimizer = getattr(learner, "optimizer", None)
    if isinstance(optimizer, torch.optim.Optimizer):
        states = optimizer.state_dict()["state"]
        moments = (states[key][name] for key in sorted(states) for name in sorted(states[key]))
        digests["optimizer"] = digest_tensors(m for m in moments if isinstance(m, Tensor))
    return digests


def digest_policy(learner: Any) -> int | None:
    """Of the weights that sample; None for a learner without a model in this process."""
    model = getattr(learner, "model", None)
    return digest_tensors(model.state_dict().values()) if isinstance(model, torch.nn.Module) else None


def digest_tensors(tensors: Iterable[Tensor]) -> int:
    digest = 0
    for tensor in tensors:
        flat = tensor.detach().flatten()
        some = flat[:: max(len(flat) // _MAX_VALUES, 1)].to("cpu", torch.float32)
        digest = crc32(some.contiguous().numpy().data.cast("B"), digest)
    return digest

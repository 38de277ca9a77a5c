"""Low-rank adapters: a few trained matrices beside the frozen weights of a model, through peft.

Adapters can be switched off, merged into a copy, or folded into the weights. They have no dropout: the policy that is
trained must be the one that samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from turnwise.config.schema import Lora, ModelSettings
from turnwise.errors import ConfigError
from turnwise.models.load import atomic_write, cast_frozen, read_whole, shard_like, torch_dtype

_ADAPTER = "default"


def loaded_type(settings: ModelSettings) -> torch.dtype:
    """What the learner loads a model in: weights that stay frozen are never held in more than they are kept in."""
    return torch_dtype(settings.dtype) if isinstance(settings.lora, Lora) else torch.float32


def add_adapter(model: PreTrainedModel, settings: Lora, *, seed: int, frozen_in: torch.dtype = torch.float32) -> None:
    """Put fresh adapters into the model, in place: it computes what it did before, and only they are trained."""
    if settings.target_modules != "all-linear":
        _check_targets(model, settings.target_modules)
    config = LoraConfig(
        r=settings.rank,
        # peft declares whole numbers and only ever divides by the rank.
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=settings.target_modules,
        # How a transposed layer stores its weight; peft would correct the other value with a warning.
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in model.modules()),
    )
    with _seeded(seed):
        inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    if frozen_in != torch.float32:
        cast_frozen(model, frozen_in)


def has_adapter(model: nn.Module) -> bool:
    return any(isinstance(module, LoraLayer) for module in model.modules())


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as if it had never been adapted."""
    layers = [layer for _, layer in _adapted_layers(model)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class MergedWeights(Mapping[str, Tensor]):
    """Weights under the names of the plain model, adapters added to copies: merging in place and back would round.

    A copy is made when it is asked for and is not kept, so that there is never a merged model beside this one. What is
    asked for after an update is that of after the update.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = dict(_adapted_layers(model))
        self._tensors = {_plain_name(name): (name, tensor) for name, tensor in model.state_dict().items()}
        self._tensors.pop("", None)

    @torch.no_grad()
    def __getitem__(self, name: str) -> Tensor:
        own_name, tensor = self._tensors[name]
        owner, _, kind = own_name.partition(".base_layer.")
        tensor = read_whole(tensor)
        # Added in the adapters' own type, and rounded once.
        return (tensor + _delta(self._layers[owner])).to(tensor.dtype) if kind == "weight" else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _plain_name(name: str) -> str:
    """The name in a model without adapters; empty for what belongs to an adapter."""
    is_adapter = bool(set(name.split(".")) & set(LoraLayer.adapter_layer_names))
    return "" if is_adapter else name.replace(".base_layer.", ".")


@torch.no_grad()
def fold_adapter(model: nn.Module, *, seed: int) -> None:
    """Make what the adapters have learnt part of the frozen weights, and start them afresh."""
    with _seeded(seed):
        for _, layer in _adapted_layers(model):
            base: Any = layer.get_base_layer().weight
            base.add_(shard_like(base, _delta(layer)))
            down, up = _matrices(layer)
            # As peft begins them; drawn as a whole, so that pieces are those of one process.
            fresh = torch.empty(down.shape, dtype=down.dtype, device=down.device)
            atomic_write(down, nn.init.kaiming_uniform_(fresh, a=math.sqrt(5)))
            up.zero_()


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def _delta(layer: LoraLayer) -> Tensor:
    """What the adapter adds to the weight beside it; peft's own sum does not know pieces."""
    down, up = (read_whole(matrix) for matrix in _matrices(layer))
    product = (up @ down) * layer.scaling[_ADAPTER]
    return product.t() if getattr(layer, "fan_in_fan_out", False) else product


def _matrices(layer: LoraLayer) -> tuple[Tensor, Tensor]:
    return layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight  # type: ignore[return-value]


def _check_targets(model: PreTrainedModel, targets: list[str]) -> None:
    """The output layer is no target: where it shares its weight with the embedding it cannot be merged."""
    head = model.get_output_embeddings()
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    unknown = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in linear)]
    if unknown:
        known = sorted({name.rsplit(".", 1)[-1] for name in linear})
        raise ConfigError(
            f"model.lora.target_modules: {', '.join(map(repr, unknown))} given; {type(model).__name__} has no such "
            f"linear layer between its embedding and its output. Choose from {', '.join(known)}, or 'all-linear'."
        )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """New adapters come from the run's seed, and nobody else's random numbers change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield

"""Which models are held in memory, what each costs, and which setting decided it.

In: the shape of a model and the settings. Out: parameters and bytes, also of the models that are not loaded. Models are
made without weights, so asking costs nothing. It counts weights, gradients and optimizer state; it knows nothing of
activations and key-value rows, whose size depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig

from turnwise.config import schema_learn as learning
from turnwise.config.schema import Lora, ModelSettings, NoLora
from turnwise.config.schema_learn import FsdpRanks, is_offloaded
from turnwise.errors import ModelError
from turnwise.learn.adapters import add_adapter
from turnwise.learn.policy import ValueHead
from turnwise.learn.tiny_reward import tiny_reward_config
from turnwise.pretrained import load_config, make_causal_model, torch_dtype

_FLOAT32_BYTES = 4
_ADAM_BYTES = 8
"""Two float32 moments per trained parameter."""
_OF_LEARNER = ("actor", "reference", "critic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """One model: what it takes, or would take where it is not loaded. None where its shape is not known."""

    name: str
    is_loaded: bool
    reason: str
    """The setting that decided it."""
    parameters: int | None
    weight_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None

    @property
    def total_bytes(self) -> int | None:
        return _sum([self.weight_bytes, self.gradient_bytes, self.optimizer_bytes])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """All models a learner of this family may need, loaded or not."""

    models: tuple[ModelMemory, ...]
    loaded_bytes: int | None
    saved_bytes: int | None
    """What the models that are not loaded would have cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Counts of parameters; all None where the model is not known."""

    plain: int | None = None
    """Of the model without adapters."""
    adapted: int | None = None
    """With adapters, where there are any."""
    trained: int | None = None
    trained_trunk: int | None = None
    """Without the output layer, which a critic never asks."""
    value_head: int | None = None


def read_config(path: str) -> PreTrainedConfig | None:
    """The shape of a model on this machine; None where there is none, such as a hub name that was never fetched."""
    try:
        return load_config(path, local_files_only=True)
    except ModelError:
        return None


def report_memory(
    config: PreTrainedConfig | None,
    model: ModelSettings,
    learn: learning.LearnSettings,
    *,
    judge_path: str | None = None,
    is_shared: bool = False,
) -> MemoryReport:
    """`config` is the shape of `model.path`; `judge_path` the reward model's folder, where there is one.

    `is_shared` where the engine samples from the actor in place.
    """
    shape, frozen_bytes = _measure(config, model.lora), torch_dtype(model.dtype).itemsize
    beside_adapters = frozen_bytes if isinstance(model.lora, Lora) else _FLOAT32_BYTES
    judge = _measure(_judge_config(judge_path), NoLora()).plain if judge_path is not None else shape.plain
    has_value_head = isinstance(learn.critic, learning.ValueHeadCritic)
    rows = (
        _trained(
            "actor",
            (True, "model.lora: its adapters are trained" if model.lora.type == "lora" else "trained in full"),
            _sum([shape.adapted, shape.value_head]) if has_value_head else shape.adapted,
            _sum([shape.trained, shape.value_head]) if has_value_head else shape.trained,
            beside_adapters,
        ),
        _frozen("engine", _engine_reason(is_shared), shape.plain, frozen_bytes),
        _frozen("reference", _reference_reason(model, learn), shape.plain, frozen_bytes),
        _trained(
            "critic",
            _critic_reason(learn),
            _sum([shape.adapted, shape.value_head]),
            _sum([shape.trained_trunk, shape.value_head]),
            beside_adapters,
        ),
        _frozen("reward model", _judge_reason(judge_path), judge, frozen_bytes),
    )
    return MemoryReport(
        models=rows,
        loaded_bytes=_sum([row.total_bytes for row in rows if row.is_loaded]),
        saved_bytes=_sum([row.total_bytes for row in rows if not row.is_loaded]),
    )


def bytes_per_rank(report: MemoryReport, learn: learning.LearnSettings) -> int | None:
    """What each rank of `learn.parallel` holds between passes: all of the learner's models, or its pieces of them."""
    held = _sum([row.total_bytes for row in report.models if row.is_loaded and row.name in _OF_LEARNER])
    if held is None or not isinstance(learn.parallel, FsdpRanks):
        return held
    return -(-held // learn.parallel.ranks)


def _judge_config(judge_path: str) -> PreTrainedConfig | None:
    return tiny_reward_config() if judge_path == "tiny" else read_config(judge_path)


def describe_in_one_line(report: MemoryReport) -> str:
    """For the start of a run."""
    loaded = ", ".join(f"{row.name} {size_words(row.total_bytes)}" for row in report.models if row.is_loaded)
    left_out = ", ".join(f"{row.name} ({row.reason})" for row in report.models if not row.is_loaded)
    saved = f"; not loaded: {left_out}: {size_words(report.saved_bytes)} saved" if left_out else ""
    return f"models: {loaded}{saved}"


def size_words(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "unknown size"
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _engine_reason(is_shared: bool) -> tuple[bool, str]:
    return not is_shared, "it samples from the actor's weights" if is_shared else "it samples from a copy of its own"


def _reference_reason(model: ModelSettings, learn: learning.LearnSettings) -> tuple[bool, str]:
    if isinstance(learn.kl, learning.NoKl):
        return False, "learn.kl is none"
    if isinstance(model.lora, Lora):
        return False, "model.lora: it is the actor with its adapters off"
    if is_offloaded(learn):
        return False, "learn.kl.offload: it lies in a file"
    return True, f"learn.kl is {learn.kl.type}"


def _critic_reason(learn: learning.LearnSettings) -> tuple[bool, str]:
    is_model = isinstance(learn.critic, learning.ModelCritic)
    beside = ", on the actor's trunk" if isinstance(learn.critic, learning.ValueHeadCritic) else ""
    return is_model, f"learn.critic is {learn.critic.type}{beside}"


def _judge_reason(judge_path: str | None) -> tuple[bool, str]:
    return judge_path is not None, "reward.judge is a model" if judge_path is not None else "reward.judge is no model"


def _measure(config: PreTrainedConfig | None, lora: NoLora | Lora) -> _Shape:
    if config is None:
        return _Shape()
    with torch.device("meta"):
        model = make_causal_model(config)
        plain = _count(model)
        if isinstance(lora, Lora):
            add_adapter(model, lora, seed=0)
        return _Shape(
            plain=plain,
            adapted=_count(model),
            trained=_count(model, is_trained=True),
            trained_trunk=_count(model.base_model, is_trained=True),
            value_head=_count(ValueHead(config.get_text_config().hidden_size)),
        )


def _count(model: nn.Module, *, is_trained: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not is_trained)


def _trained(
    name: str, decision: tuple[bool, str], parameters: int | None, trained: int | None, frozen_bytes: int
) -> ModelMemory:
    """The learner's own: what is trained in float32 with its gradients and Adam's moments, and what is frozen."""
    frozen = None if parameters is None or trained is None else parameters - trained
    return ModelMemory(
        name=name,
        is_loaded=decision[0],
        reason=decision[1],
        parameters=parameters,
        weight_bytes=_sum([_times(trained, _FLOAT32_BYTES), _times(frozen, frozen_bytes)]),
        gradient_bytes=_times(trained, _FLOAT32_BYTES),
        optimizer_bytes=_times(trained, _ADAM_BYTES),
    )


def _frozen(name: str, decision: tuple[bool, str], parameters: int | None, bytes_each: int) -> ModelMemory:
    return ModelMemory(
        name=name,
        is_loaded=decision[0],
        reason=decision[1],
        parameters=parameters,
        weight_bytes=_times(parameters, bytes_each),
        gradient_bytes=0,
        optimizer_bytes=0,
    )


def _times(count: int | None, bytes_each: int) -> int | None:
    return None if count is None else count * bytes_each


def _sum(parts: list[int | None]) -> int | None:
    """The unknown makes a sum unknown."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None

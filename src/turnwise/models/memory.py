"""Memory estimate of a run, from the configuration of the model and the settings.

`report_memory` counts weights, gradients and optimizer state per model; `estimate_peak` adds activations and the
engine's keys and values and finds when most is in use. Models are built on the meta device, so no weights are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import PreTrainedConfig

from turnwise.config import schema_learn as learning
from turnwise.config.schema import Lora, ModelSettings, NoLora
from turnwise.config.schema_learn import FsdpRanks, is_offloaded
from turnwise.errors import ModelError
from turnwise.models.activations import LayerShape, MicroBatchLimit, allocator_overhead, bytes_per_token
from turnwise.models.adapters import add_adapter
from turnwise.models.load import ValueHead, load_config, make_causal_model, torch_dtype
from turnwise.models.reward_model import tiny_reward_config

_FLOAT32 = 4
_ADAM_BYTES = 8
"""Two float32 moments per trained parameter."""
_OF_LEARNER = ("actor", "reference", "critic")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Memory of one model, loaded or not. None: its configuration is unknown."""

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


def _sum(parts: list[int | None]) -> int | None:
    """None if any part is None."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """All models that a learner may need."""

    models: tuple[ModelMemory, ...]
    loaded_bytes: int | None
    saved_bytes: int | None
    """Of the models that are not loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Numbers of parameters; None: the configuration is unknown."""

    plain: int | None = None
    """Without adapters."""
    adapted: int | None = None
    """With adapters, if there are any."""
    trained: int | None = None
    trained_trunk: int | None = None
    """Without the output layer, which a critic does not use."""
    value_head: int | None = None


def read_config(path: str) -> PreTrainedConfig | None:
    """Return the configuration of a model on this machine; None for a hub name that was not downloaded."""
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
    """Return the memory of all models.

    Args:
        config: configuration of `model.path`; None if unknown.
        judge_path: folder of the reward model, if there is one.
        is_shared: whether the engine samples from the actor's weights.
    """
    shape, frozen_bytes = _measure(config, model.lora), torch_dtype(model.dtype).itemsize
    beside_adapters = frozen_bytes if isinstance(model.lora, Lora) else _FLOAT32
    judge = _measure(_judge_config(judge_path), NoLora()).plain if judge_path is not None else shape.plain
    has_value_head = isinstance(learn.critic, learning.ValueHeadCritic)
    engine_reason = (
        not is_shared,
        "it samples from the actor's weights" if is_shared else "it samples from a copy of its own",
    )
    judge_reason = (judge_path is not None, f"reward.judge is {'no' if judge_path is None else 'a'} model")
    rows = (
        _measure_model(
            "actor",
            (True, "model.lora: its adapters are trained" if model.lora.type == "lora" else "trained in full"),
            _sum([shape.adapted, shape.value_head]) if has_value_head else shape.adapted,
            _sum([shape.trained, shape.value_head]) if has_value_head else shape.trained,
            beside_adapters,
        ),
        _measure_model("engine", engine_reason, shape.plain, 0, frozen_bytes),
        _measure_model("reference", _reference_reason(model, learn), shape.plain, 0, frozen_bytes),
        _measure_model(
            "critic",
            _critic_reason(learn),
            _sum([shape.adapted, shape.value_head]),
            _sum([shape.trained_trunk, shape.value_head]),
            beside_adapters,
        ),
        _measure_model("reward model", judge_reason, judge, 0, frozen_bytes),
    )
    return MemoryReport(
        models=rows,
        loaded_bytes=_sum([row.total_bytes for row in rows if row.is_loaded]),
        saved_bytes=_sum([row.total_bytes for row in rows if not row.is_loaded]),
    )


def bytes_per_rank(report: MemoryReport, learn: learning.LearnSettings) -> int | None:
    """Return the memory of each rank of `learn.parallel` between forward passes: all models, or its shards of them."""
    held = _sum([row.total_bytes for row in report.models if row.is_loaded and row.name in _OF_LEARNER])
    if held is None or not isinstance(learn.parallel, FsdpRanks):
        return held
    return -(-held // learn.parallel.ranks)


def _judge_config(judge_path: str) -> PreTrainedConfig | None:
    return tiny_reward_config() if judge_path == "tiny" else read_config(judge_path)


def describe_in_one_line(report: MemoryReport) -> str:
    """Format the report for the start of a run."""
    loaded = ", ".join(f"{row.name} {format_bytes(row.total_bytes)}" for row in report.models if row.is_loaded)
    left_out = ", ".join(f"{row.name} ({row.reason})" for row in report.models if not row.is_loaded)
    saved = f"; not loaded: {left_out}: {format_bytes(report.saved_bytes)} saved" if left_out else ""
    return f"models: {loaded}{saved}"


def format_bytes(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "unknown size"
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


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


def _measure_model(
    name: str, decision: tuple[bool, str], parameters: int | None, trained: int | None, frozen_bytes: int
) -> ModelMemory:
    """Trained parameters are float32, with gradients and the moments of Adam; the others have `frozen_bytes` each."""
    frozen = None if parameters is None or trained is None else parameters - trained
    return ModelMemory(
        name=name,
        is_loaded=decision[0],
        reason=decision[1],
        parameters=parameters,
        weight_bytes=_sum([_times(trained, _FLOAT32), _times(frozen, frozen_bytes)]),
        gradient_bytes=_times(trained, _FLOAT32),
        optimizer_bytes=_times(trained, _ADAM_BYTES),
    )


def _times(count: int | None, bytes_each: int) -> int | None:
    return None if count is None else count * bytes_each


MAX_LOGITS = 1 << 22
"""Most logits in memory at once; up to this number they are kept for the backward pass."""
PROCESS_BYTES = 450_000_000
"""Python, torch, transformers and a tokenizer, before any model is loaded; measured on Linux."""
_LOGIT_TABLES = 2
_SAMPLING_TABLES = 3
"""Logits, their probabilities, and those sorted or with random numbers."""
_POOL_ROOM = 1.25
"""Average size of the engine's key-value pool in units of what is used; it grows by half when it is full."""


@dataclass(frozen=True, slots=True)
class PeakPart:
    """One line of the sum."""

    name: str
    num_bytes: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Peak:
    """Everything in memory when most is in use."""

    moment: str
    """`loading`, `playing` or `learning`."""
    parts: tuple[PeakPart, ...]
    num_bytes: int = field(init=False)
    """A field, so that `plan --json` has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_bytes", sum(part.num_bytes for part in self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Batch sizes and lengths that the peak depends on."""

    limit: MicroBatchLimit
    longest_row: int
    """Tokens of the longest row; one longer than a micro-batch is a forward pass of its own."""
    sampled_tokens: int
    """Most sampled tokens in one micro-batch."""
    live_tokens: int
    """Most tokens whose keys and values the engine holds at once."""
    live_rows: int
    """Most sequences that the engine continues at once."""
    is_overlapped: bool
    """Whether rollouts continue during an update."""
    is_frozen: bool
    """Only adapters are trained."""
    is_tied: bool
    """Embedding and output layer share a matrix."""
    dtype: torch.dtype
    device: torch.device


def estimate_peak(memory: MemoryReport, shape: LayerShape, load: Load) -> Peak | None:
    """Return None if the size of a model is unknown."""
    loaded = [row for row in memory.models if row.is_loaded]
    weights = [row.weight_bytes for row in loaded]
    if any(size is None for size in weights):
        return None
    base = PeakPart("process", PROCESS_BYTES, "Python, torch, transformers, tokenizer")
    largest = max(size or 0 for size in weights)
    played = _playing(shape, load)
    peaks = [
        Peak("loading", (base, PeakPart("a file", 2 * largest, _twice(largest)))),
        Peak("playing", (base, *_held_by(loaded, "weights", "optimizer"), *played)),
        Peak("learning", (base, *_held_by(loaded, "weights", "gradients", "optimizer"), *_learning(shape, load))),
    ]
    if load.is_overlapped:
        peaks.append(Peak("playing and learning", (*peaks[-1].parts, *played, _published(memory))))
    return max(peaks, key=lambda peak: peak.num_bytes)


def _held_by(models: Sequence[ModelMemory], *names: str) -> list[PeakPart]:
    parts = []
    for row in models:
        sizes = {"weights": row.weight_bytes, "gradients": row.gradient_bytes, "optimizer": row.optimizer_bytes}
        parts += [
            PeakPart(f"{row.name} {name}", size, _per_parameter(row.parameters, size))
            for name in names
            if (size := sizes[name])
        ]
    return parts


def _published(memory: MemoryReport) -> PeakPart:
    """The copy of the policy between learner and engine."""
    (engine,) = (row for row in memory.models if row.name == "engine")
    size = (engine.parameters or 0) * _FLOAT32
    return PeakPart("published weights", size, _per_parameter(engine.parameters, size))


def _playing(shape: LayerShape, load: Load) -> list[PeakPart]:
    """Memory of the engine during a rollout or an evaluation."""
    numbers, logits = shape.num_layers * 2 * shape.keys, load.live_rows * shape.vocab
    return [
        PeakPart(
            "keys and values",
            int(load.live_tokens * numbers * load.dtype.itemsize * _POOL_ROOM),
            f"{load.live_tokens:,} live tokens x {shape.num_layers} layers x 2 x {shape.keys} numbers "
            f"x {load.dtype.itemsize} bytes x {_POOL_ROOM} with room to grow",
        ),
        PeakPart(
            "next logits",
            _SAMPLING_TABLES * logits * _FLOAT32,
            f"{_SAMPLING_TABLES} tables x {load.live_rows:,} rows x {shape.vocab:,} x {_FLOAT32} bytes",
        ),
    ]


def _learning(shape: LayerShape, load: Load) -> list[PeakPart]:
    """Temporary memory of a micro-batch."""
    tokens, per_byte, per_token, terms = _largest_pass(shape, load)
    logits = min(load.sampled_tokens * shape.vocab, MAX_LOGITS)
    parts = [
        PeakPart(
            "activations",
            int(tokens * per_token * per_byte),
            f"{tokens:,} tokens x {terms} x {per_byte} held by the C library",
        ),
        PeakPart(
            "logits",
            _LOGIT_TABLES * logits * _FLOAT32,
            f"{_LOGIT_TABLES} tables x {logits:,} numbers x {_FLOAT32} bytes",
        ),
    ]
    if not load.is_frozen and load.is_tied:
        matrix = shape.vocab * shape.hidden
        parts.append(
            PeakPart(
                "embedding's gradients",
                2 * matrix * _FLOAT32,
                f"as embedding and as output layer: 2 x {shape.vocab:,} x {shape.hidden:,} x 4 bytes",
            )
        )
    return parts


def _largest_pass(shape: LayerShape, load: Load) -> tuple[int, float, int, str]:
    """Return tokens, overhead, bytes per token and arithmetic of a full micro-batch or of the longest row."""
    each = bytes_per_token(shape, is_frozen=load.is_frozen, dtype=load.dtype)
    passes = []
    for tokens in (load.limit.micro_batch_tokens, load.longest_row):
        is_again = load.limit.is_checkpointed(tokens)
        held = allocator_overhead(load.device, is_frozen=load.is_frozen, is_checkpointed=is_again)
        size, terms = (each.checkpointed, each.checkpointed_terms) if is_again else (each.kept, each.terms)
        passes.append((tokens, held, size, terms))
    return max(passes, key=lambda one: one[0] * one[1] * one[2])


def describe_peak(peak: Peak) -> list[str]:
    lines = [f"Most memory at one time: about {format_bytes(peak.num_bytes)}, while {peak.moment}:"]
    return [*lines, *(f"  {part.name:22}  {format_bytes(part.num_bytes):>9}  {part.arithmetic}" for part in peak.parts)]


def _twice(num_bytes: int) -> str:
    return f"2 x {format_bytes(num_bytes)}: the largest file, and its weights copied out of it"


def _per_parameter(parameters: int | None, num_bytes: int) -> str:
    share = num_bytes / (parameters or 1)
    return f"{(parameters or 0) / 1e6:,.2f} M parameters x {share:.3g} bytes"

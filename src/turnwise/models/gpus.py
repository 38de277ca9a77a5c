"""What a model would take on several GPUs: memory per GPU, bytes per sync, tokens per step.

In: the shape of a model, how many GPUs there are, and how long rows are. Out: parts with their arithmetic. It is
arithmetic for planning, measured on no GPU. Weights, gradients and optimizer of the learner are sharded over all GPUs
(FSDP); the engine holds a bfloat16 copy, split over as many GPUs as its size asks for (tensor parallel), and as many
such engines as there is room for side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.models.activations import LayerShape, bytes_per_token

GPU_BYTES = 80_000_000_000
"""Of one GPU, where nobody says otherwise."""
_USABLE = 0.9
"""The rest is the driver's, the allocator's, and a layer's weights gathered for its pass."""
_ENGINE_SHARE = 0.3
"""Of a GPU that one engine's weights may take before it is split over more."""
_LORA_RANK = 8
_HALF, _SINGLE = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model by its numbers."""

    name: str
    layer: LayerShape
    is_tied: bool
    has_bias: bool = True
    """Queries, keys and values have one, as in Qwen2."""

    @property
    def parameters(self) -> int:
        one = self.layer
        attention = one.hidden * (2 * one.queries + 2 * one.keys)
        bias = one.queries + 2 * one.keys if self.has_bias else 0
        per_layer = attention + bias + 3 * one.hidden * one.inner + 2 * one.hidden
        embeddings = one.vocab * one.hidden * (1 if self.is_tied else 2)
        return one.num_layers * per_layer + embeddings + one.hidden

    @property
    def adapter_parameters(self) -> int:
        """Of rank-8 adapters in every linear layer but the output."""
        one = self.layer
        ends = 2 * (one.hidden + one.queries) + 2 * (one.hidden + one.keys) + 3 * (one.hidden + one.inner)
        return one.num_layers * _LORA_RANK * ends


def _qwen(name: str, num_layers: int, heads: int, kv_heads: int, sizes: tuple[int, int, int]) -> ModelShape:
    hidden, inner, vocab = sizes
    head = hidden // heads
    layer = LayerShape(
        num_layers=num_layers,
        hidden=hidden,
        inner=inner,
        queries=hidden,
        keys=kv_heads * head,
        heads=heads,
        vocab=vocab,
    )
    return ModelShape(name=name, layer=layer, is_tied=hidden < 2048)


SHAPES = {
    shape.name: shape
    for shape in (
        _qwen("qwen2.5-0.5b", 24, 14, 2, (896, 4864, 151_936)),
        _qwen("qwen2.5-7b", 28, 28, 4, (3584, 18_944, 152_064)),
        _qwen("qwen2.5-32b", 64, 40, 8, (5120, 27_648, 152_064)),
    )
}
"""As their public configurations say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPart:
    name: str
    num_bytes: int
    arithmetic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """One way of training one model on so many GPUs."""

    model: str
    gpus: int
    is_lora: bool
    parts: tuple[GpuPart, ...]
    """Per GPU."""
    bytes_per_gpu: int
    gpu_bytes: int
    fits: bool
    gpus_per_engine: int
    sync_bytes: int
    """Sent to each engine after an update."""
    sync_arithmetic: str
    tokens_per_step: int
    tokens_arithmetic: str


def plan_gpus(
    shape: ModelShape, gpus: int, *, is_lora: bool, episodes: int, row_tokens: int, gpu_bytes: int = GPU_BYTES
) -> GpuPlan:
    """`row_tokens`: the longest row; `episodes` are played at once, spread over the engines."""
    split = _gpus_per_engine(shape, gpus, gpu_bytes)
    parts = tuple(_parts(shape, gpus, split, is_lora, (episodes, row_tokens)))
    total = sum(part.num_bytes for part in parts)
    sent = shape.adapter_parameters if is_lora else shape.parameters
    return GpuPlan(
        model=shape.name,
        gpus=gpus,
        is_lora=is_lora,
        parts=parts,
        bytes_per_gpu=total,
        gpu_bytes=gpu_bytes,
        fits=total <= gpu_bytes * _USABLE,
        gpus_per_engine=split,
        sync_bytes=sent * _HALF,
        sync_arithmetic=f"{sent:,} {'adapter ' if is_lora else ''}parameters x {_HALF} bytes",
        tokens_per_step=episodes * row_tokens,
        tokens_arithmetic=f"{episodes:,} episodes x {row_tokens:,} tokens",
    )


def _gpus_per_engine(shape: ModelShape, gpus: int, gpu_bytes: int) -> int:
    """The smallest power of two that leaves room for the learner; heads must be divisible by it."""
    split = 1
    while split * 2 <= min(gpus, 8) and shape.parameters * _HALF / split > gpu_bytes * _ENGINE_SHARE:
        split *= 2
    return split


def _parts(shape: ModelShape, gpus: int, split: int, is_lora: bool, played: tuple[int, int]) -> Iterator[GpuPart]:
    count, trained = shape.parameters, shape.adapter_parameters if is_lora else shape.parameters
    shared = f" / {gpus} GPUs" if gpus > 1 else ""
    frozen = count * (_HALF if is_lora else 0)
    if is_lora:
        yield GpuPart(name="frozen base", num_bytes=frozen // gpus, arithmetic=f"{count:,} x {_HALF} bytes{shared}")
    for name, width in (("weights", _SINGLE), ("gradients", _SINGLE), ("optimizer", 2 * _SINGLE)):
        size = trained * width // gpus
        yield GpuPart(name=name, num_bytes=size, arithmetic=f"{trained:,} x {width} bytes{shared}")
    each = bytes_per_token(shape.layer, is_frozen=is_lora, dtype=torch.bfloat16)
    yield GpuPart(
        name="activations",
        num_bytes=played[1] * each.checkpointed,
        arithmetic=f"{played[1]:,} tokens x {each.checkpointed_terms}, layers computed again",
    )
    yield GpuPart(name="engine", num_bytes=count * _HALF // split, arithmetic=f"{count:,} x {_HALF} bytes / {split}")
    live = -(-played[0] // max(1, gpus // split)) * played[1]
    numbers = shape.layer.num_layers * 2 * shape.layer.keys
    yield GpuPart(
        name="keys and values",
        num_bytes=live * numbers * _HALF // split,
        arithmetic=f"{live:,} live tokens x {shape.layer.num_layers} layers x 2 x {shape.layer.keys} x {_HALF} bytes "
        f"/ {split}",
    )


def describe_gpus(plan: GpuPlan) -> list[str]:
    """In plain words, with every sum."""
    kind = "LoRA" if plan.is_lora else "full fine-tuning"
    verdict = "fits" if plan.fits else "does not fit"
    head = (
        f"{plan.model}, {kind}, {plan.gpus} GPU{'s' * (plan.gpus > 1)}: {plan.bytes_per_gpu / 1e9:,.1f} GB per GPU, "
        f"{verdict} into {plan.gpu_bytes / 1e9:.0f} GB."
    )
    return [
        head,
        *(f"  {part.name:16} {part.num_bytes / 1e9:8,.2f} GB  {part.arithmetic}" for part in plan.parts),
        f"  each sync sends  {plan.sync_bytes / 1e9:8,.3f} GB  {plan.sync_arithmetic}",
        f"  a step has at most {plan.tokens_per_step:,} tokens: {plan.tokens_arithmetic}",
    ]


COUNTS = (1, 8, 64)
"""GPUs, where nobody says how many."""
CAVEAT = (
    "This is arithmetic, measured on no GPU. The learner's weights, gradients and optimizer are counted as sharded "
    "over all GPUs in float32 (learn.parallel.type=fsdp), a frozen base and the engine's copy in bfloat16, and one row "
    "at a time in a forward pass."
)


def plan_on_gpus(settings: TurnwiseSettings, model: str, gpus: int | None = None) -> list[GpuPlan]:
    """Full fine-tuning and LoRA, for each number of GPUs."""
    if not model:
        raise ConfigError(f"--gpus is given without --model; choose one of {', '.join(SHAPES)}.")
    if model not in SHAPES:
        raise ConfigError(f"--model: '{model}' given; the shapes that are known are {', '.join(SHAPES)}.")
    if gpus is not None and gpus < 1:
        raise ConfigError(f"--gpus: {gpus} given; expected at least 1.")
    rollout = settings.rollout
    return [
        plan_gpus(
            SHAPES[model],
            count,
            is_lora=is_lora,
            episodes=rollout.groups * rollout.group_size,
            row_tokens=settings.context.max_tokens,
        )
        for count in ((gpus,) if gpus is not None else COUNTS)
        for is_lora in (False, True)
    ]


def describe_on_gpus(plans: Sequence[GpuPlan]) -> str:
    return "\n".join([*(line for plan in plans for line in describe_gpus(plan)), CAVEAT])


def to_rows(plans: Sequence[GpuPlan]) -> dict[str, object]:
    return {"plans": [asdict(plan) for plan in plans], "caveat": CAVEAT}

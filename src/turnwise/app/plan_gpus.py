"""What a recipe would take with a larger model on several GPUs: `turnwise plan RECIPE --model NAME --gpus N`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from turnwise.config.schema import TurnwiseSettings
from turnwise.errors import ConfigError
from turnwise.learn.scaling import SHAPES, GpuPlan, describe_gpus, plan_gpus

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

"""Writes docs/capacity_planning.md: Qwen2.5-0.5B, 7B and 32B on 1, 8 and 64 GPUs, from `turnwise.models.gpus`."""

from __future__ import annotations

import sys
from pathlib import Path

from generated_page import main

from turnwise.models.gpus import CAVEAT, COUNTS, SHAPES, GpuPlan, describe_gpus, plan_gpus

PAGE = Path(__file__).parent / "capacity_planning.md"
_EPISODES, _ROW_TOKENS = 256, 4096
_FORECASTS = """
How fast a run would be with more explorers and learners is simulated by `python -m benchmarks.scaling_sim RUN`
(`benchmarks/scaling_sim.md`).
"""
_HEAD = f"""# Larger models on GPUs

What a step of {_EPISODES} episodes of at most {_ROW_TOKENS:,} tokens takes on GPUs of 80 GB. {CAVEAT}

The same for a recipe: `turnwise plan sokoban --model qwen2.5-7b --gpus 8`, with `--json` for programs. Bold: too much.

<!-- written by docs/generate_scaling.py -->

| model | GPUs | full, GB per GPU | LoRA, GB per GPU | GPUs per engine | sync, full | sync, LoRA | tokens per step |
|---|---|---|---|---|---|---|---|
"""


def write_page() -> str:
    rows = [_row(_plans(name, gpus)) for name in SHAPES for gpus in COUNTS]
    example = "\n".join(line for plan in _plans("qwen2.5-7b", 8) for line in describe_gpus(plan))
    return f"{_HEAD}{''.join(rows)}\n## The arithmetic of one row\n\n```\n{example}\n```\n{_FORECASTS}"


def _plans(name: str, gpus: int) -> tuple[GpuPlan, GpuPlan]:
    full, lora = (
        plan_gpus(SHAPES[name], gpus, is_lora=is_lora, episodes=_EPISODES, row_tokens=_ROW_TOKENS)
        for is_lora in (False, True)
    )
    return full, lora


def _row(plans: tuple[GpuPlan, GpuPlan]) -> str:
    full, lora = plans
    sizes = [f"{p.bytes_per_gpu / 1e9:,.1f}" if p.fits else f"**{p.bytes_per_gpu / 1e9:,.1f}**" for p in plans]
    cells = [
        full.model,
        str(full.gpus),
        *sizes,
        str(full.gpus_per_engine),
        f"{full.sync_bytes / 1e9:,.2f} GB",
        f"{lora.sync_bytes / 1e6:,.1f} MB",
        f"{full.tokens_per_step:,}",
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.exit(main(PAGE, write_page, __file__))

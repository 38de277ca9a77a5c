"""The dialects that are understood, and which of them a file is written in.

In: the keys of a file. Out: its dialect, or None for a file in our own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from turnwise.config.dialects import agent_trainer, align_anything, multi_turn_ppo, ragen, trinity, trinity_whole, verl
from turnwise.config.dialects.table import Dialect
from turnwise.config.load import SHORTHANDS
from turnwise.config.schema import TurnwiseSettings

_SHARED = (*ragen.ROWS, *align_anything.ROWS, *agent_trainer.ROWS, *verl.ROWS)
"""These four build upon each other, and files mix their sections."""


def _of(name: str, own: tuple[Any, ...], *sections: str) -> Dialect:
    return Dialect(name=name, sections=sections, own=own, rows=_SHARED, finish=multi_turn_ppo.finish)


ALIGN_ANYTHING = _of(
    "align-anything",
    align_anything.ROWS,
    "train_cfgs",
    "model_cfgs",
    "env_cfgs",
    "data_cfgs",
    "logger_cfgs",
    "lora_cfgs",
    "bnb_cfgs",
    "vllm_cfgs",
    "special_tokens",
)
RAGEN = _of(
    "RAGEN",
    ragen.ROWS,
    "es_manager",
    "ctx_manager",
    "agent_proxy",
    "custom_envs",
    "system",
    "seed",
    "lora",
    "model_path",
    "micro_batch_size_per_gpu",
    "ppo_mini_batch_size",
    "enable_response_mask",
    "grpo_advantage_length_weight",
    "defaults",
)
AGENT_TRAINER = _of("AgentTrainer", agent_trainer.ROWS, "agent", "env_template")
VERL = _of(
    "verl",
    verl.ROWS,
    "actor_rollout_ref",
    "data",
    "critic",
    "reward_model",
    "custom_reward_function",
    "ray_init",
    "ray_kwargs",
    "trainer",
    "algorithm",
)
TRINITY = Dialect(
    name="Trinity-RFT",
    sections=(
        "explorer",
        "synchronizer",
        "cluster",
        "buffer",
        "algorithm",
        "trainer",
        "model",
        "project",
        "name",
        "checkpoint_root_dir",
        "monitor",
        "data_processor",
        "service",
        "log",
        "stages",
        "mode",
        "group",
        "continue_from_checkpoint",
        "ray_namespace",
    ),
    own=trinity.ROWS,
    rows=trinity.ROWS,
    finish=trinity_whole.finish,
)
DIALECTS = (ALIGN_ANYTHING, RAGEN, AGENT_TRAINER, VERL, TRINITY)
OUR_SECTIONS = {*TurnwiseSettings.model_fields, *SHORTHANDS, "extends", "pretrained"}


def detect_dialect(raw: Mapping[str, Any]) -> Dialect | None:
    """The dialect with the most of its sections in the file; None where all of them are ours."""
    sections = {str(key) for key in raw}
    scores = {dialect.name: len(sections & set(dialect.sections)) for dialect in DIALECTS}
    foreign = sections - OUR_SECTIONS
    if not any(foreign & set(dialect.sections) for dialect in DIALECTS):
        return None
    if "buffer" not in sections and not sections & {"explorer", "synchronizer", "cluster", "checkpoint_root_dir"}:
        # `algorithm`, `trainer` and `model` alone are words of several.
        scores[TRINITY.name] = 0
    return max(DIALECTS, key=lambda dialect: scores[dialect.name])


def describe_likeness(keys: Iterable[str]) -> str | None:
    """Whose file this may be, where its top-level keys are neither ours nor anybody's; None where all are ours."""
    foreign = [str(key) for key in keys if key not in OUR_SECTIONS]
    if not foreign:
        return None
    scores = {d.name: sum(bool(get_close_matches(key, d.sections, cutoff=0.75)) for key in foreign) for d in DIALECTS}
    name = max(scores, key=lambda name: scores[name])
    if scores[name]:
        return f"It looks like a file of {name}; its sections are listed in docs/coming_from.md."
    known = ", ".join(dialect.name for dialect in DIALECTS)
    return f"Files of {known} are understood as they stand: docs/coming_from.md."

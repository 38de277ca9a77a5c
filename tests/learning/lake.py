"""A small task on which learning can be proven in seconds: 3x3 lakes that cannot all be crossed without seeing holes.

`play(seed, fault)` trains one policy and says how well it did; a fault breaks one thing that matters. Budgets are
counted in environment steps, so a slow machine changes nothing but the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from turnwise.config.load import load_settings
from turnwise.config.schema import OracleWarmStart
from turnwise.hooks import TrainStep
from turnwise.loop.components import TrainComponents
from turnwise.loop.evaluate import evaluate_policy, measure_baselines
from turnwise.loop.serial import train_serial
from turnwise.loop.warm_start import warm_start
from turnwise.protocols import CreditRule
from turnwise.report.metrics import Stopwatch
from turnwise.types import Annotations, Experience, Sample, Segment

from ..small_run import build_components

Fault = Literal["none", "zero_advantages", "shifted_mask"]
MAX_ENV_STEPS = 13_500

RECIPE: dict[str, object] = {
    # It would end a run with one of these faults before it had learnt anything.
    "audit": {"is_on": False},
    "env": {
        "type": "frozen_lake",
        "size": 3,
        "view": "objects",
        "hole_rate": 0.35,
        "max_holes": 5,
        "min_distance": 2,
        "max_distance": 4,
        "blind_solvable_keep": 0.0,
        "train": {"random_start_rate": 0.7},
    },
    "model": {"tiny": {"hidden_size": 64, "intermediate_size": 192}},
    "context": {
        "window": "single_turn",
        "instructions": "none",
        "answer": {"type": "plain"},
        "max_response_tokens": 3,
        "max_tokens": 32,
    },
    "rollout": {"groups": 192, "group_size": 1, "max_turns": 6},
    "credit": {
        "type": "bi_level_gae",
        "high_level_gamma": 0.95,
        "high_level_lam": 0.95,
        "turn_value_at": "first",
        "truncation": "end",
    },
    "warm_start": {"type": "oracle", "episodes": 60, "steps": 17, "batch_rows": 128, "lr": 2e-3},
    "learn": {
        "steps": 25,
        "epochs": 2,
        "minibatches": 4,
        "critic": {"type": "value_head"},
        "entropy_coef": 0.003,
        "optim": {"lr": 1.2e-3, "warmup_steps": 5, "schedule": "linear"},
        "num_threads": 1,
    },
    "eval": {"episodes": 200, "temperature": 1.0},
}


class _BudgetSpentError(Exception):
    """All environment steps of a run are used; a healthy one ends a little earlier."""


@dataclass(frozen=True)
class Outcome:
    """Sampled success on held-out layouts, before and after."""

    seed: int
    fault: Fault
    before: float
    after: float
    hole_blind: float
    env_steps: int


def play(seed: int, fault: Fault) -> Outcome:
    torch.set_num_threads(1)
    settings = load_settings(RECIPE, {"run.seed": seed})
    components = build_components(settings)
    assert isinstance(settings.warm_start, OracleWarmStart)
    template = components.explorer.rollout.template
    asyncio.run(warm_start(components.trainer, template, settings.warm_start, lambda _done, _total: None))
    return asyncio.run(_learn(_broken(components, fault), seed, fault))


async def _learn(components: TrainComponents, seed: int, fault: Fault) -> Outcome:
    env_steps = 0

    async def count(step: TrainStep) -> None:
        nonlocal env_steps
        env_steps += sum(len(t.turns) for group in step.rollout.played for t in group.trajectories)
        if env_steps > MAX_ENV_STEPS:
            raise _BudgetSpentError

    await components.publish(0)
    before = await evaluate_policy(components.explorer.rollout)
    with suppress(_BudgetSpentError):
        await train_serial(components, Stopwatch(), start_step=0, on_step=count)
    after = await evaluate_policy(components.explorer.rollout)
    blind = measure_baselines(components.settings, components.explorer.rollout.eval_tasks)["hole_blind"]
    return Outcome(seed, fault, before.success, after.success, blind, env_steps)


def _broken(components: TrainComponents, fault: Fault) -> TrainComponents:
    if fault == "none":
        return components
    broken = {"zero_advantages": _ZeroAdvantages, "shifted_mask": _ShiftedMask}[fault](components.trainer.estimator)
    return replace(components, trainer=replace(components.trainer, estimator=broken))


class _ZeroAdvantages:
    """The credit that knows no difference between good and bad."""

    needs_values = True
    needs_groups = False
    needs_greedy = False

    def __init__(self, credit: CreditRule) -> None:
        self._credit = credit

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        samples = self._credit(experiences, annotations)
        return [replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in samples]


class _ShiftedMask(_ZeroAdvantages):
    """The off-by-one of which masks are made elsewhere: every mask bit and advantage one token too late."""

    def __call__(self, experiences: Sequence[Experience], annotations: Annotations) -> list[Sample]:
        return [
            replace(
                sample,
                experience=replace(sample.experience, segment=_shift_segment(sample.experience.segment)),
                advantages=_shift(sample.advantages),
                returns=_shift(sample.returns),
                values=_shift(sample.values),
            )
            for sample in self._credit(experiences, annotations)
            if sample.experience.segment.num_action_tokens > 1
        ]


def _shift_segment(segment: Segment) -> Segment:
    mask = np.append(False, segment.loss_mask[:-1])
    return replace(segment, loss_mask=mask, turn_ids=np.append(np.int32(-1), segment.turn_ids[:-1]))


def _shift(array: np.ndarray) -> np.ndarray:
    return np.append(np.float32(0), array[:-1])

"""The contract of a loop: where nothing is stale, every loop makes the updates of the serial one, and tells of each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from tests.small_run import SMALL_LAKE, build_components
from turnwise.config.load import load_settings
from turnwise.hooks import TrainStep
from turnwise.loop.build import find_loop
from turnwise.loop.components import TrainComponents
from turnwise.loop.serial import train_serial
from turnwise.report.metrics import Stopwatch

from .entries import names_of
from .setting import are_equal, copied

pytestmark = pytest.mark.slow

every_loop = pytest.mark.parametrize("name", names_of("loop"))


def parts_with(name: str) -> TrainComponents:
    torch.manual_seed(0)
    words = [f"loop.type={name}", "learn.steps=3", "sync.max_staleness=0"]
    return build_components(load_settings("frozenlake", [*SMALL_LAKE, *words]))


def run(loop: Any, components: TrainComponents, *, start_step: int = 0) -> list[TrainStep]:
    steps: list[TrainStep] = []

    async def on_step(step: TrainStep) -> None:
        steps.append(step)

    asyncio.run(loop(components, Stopwatch(), start_step=start_step, on_step=on_step))
    return steps


@every_loop
def test_without_staleness_the_updates_are_those_of_the_serial_loop(name: str) -> None:
    serial, other = parts_with("serial"), parts_with(name)
    expected, found = run(train_serial, serial), run(find_loop(other.settings), other)
    assert [step.step for step in found] == [1, 2, 3]
    for a, b in zip(expected, found, strict=True):
        assert a.metrics.items() <= b.metrics.items()
        assert (b.rollout.tokens_sampled, b.tokens_trained, b.task_state) == (
            a.rollout.tokens_sampled,
            a.tokens_trained,
            a.task_state,
        )
        assert [t.id for g in b.rollout.played for t in g.trajectories] == [
            t.id for g in a.rollout.played for t in g.trajectories
        ]
    assert other.trainer.learner.policy_version == 3
    assert are_equal(copied(other.trainer.learner.weights()), copied(serial.trainer.learner.weights()))


@every_loop
def test_a_resumed_loop_makes_the_steps_that_are_left(name: str) -> None:
    components = parts_with(name)
    first = run(find_loop(components.settings), components)
    resumed = parts_with(name)
    resumed.explorer.tasks.restore(first[1].task_state)
    again = run(find_loop(resumed.settings), resumed, start_step=2)
    assert [step.step for step in again] == [3]
    assert [group.task for group in again[0].rollout.played] == [group.task for group in first[2].rollout.played]


@every_loop
def test_what_whoever_listens_raises_ends_the_loop(name: str) -> None:
    components = parts_with(name)

    async def refuse(step: TrainStep) -> None:
        raise KeyError(step.step)

    with pytest.raises(KeyError, match="1"):
        asyncio.run(find_loop(components.settings)(components, Stopwatch(), start_step=0, on_step=refuse))

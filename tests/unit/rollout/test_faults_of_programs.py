"""Failures inside a user's program: they name the user's line, and none of them is told in the next run."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.setting import template
from turnwise.engine.scripted import ScriptedEngine
from turnwise.rollout.step_wise import RewardPropagationWorkflow
from turnwise.rollout.workflow import Workflow
from turnwise.types import StopReason, Task, Trajectory

from .worlds import make_proxy, make_states


class _Unpaid(RewardPropagationWorkflow):
    def reward(self, exps: list[Any]) -> float:
        return 1.0


class AsksWrongly(_Unpaid):
    """The library raises, for what stands here."""

    def step(self, step_num: int) -> bool:
        self.model.chat("not a list of messages")  # type: ignore[arg-type] # the user's line
        return False


class AsksWronglyInACoroutine(_Unpaid):
    async def step(self, step_num: int) -> bool:
        await self.model.chat_async("not a list")  # type: ignore[arg-type] # the user's line
        return False


class ReadsWrongly(_Unpaid):
    """A package of Python's own raises."""

    def step(self, step_num: int) -> bool:
        json.loads("{")  # the user's line
        return False


class LeavesATask(Workflow):
    """As frameworks do: a task beside the program, which nobody awaits, and which fails."""

    async def run(self) -> Trajectory:
        asyncio.ensure_future(self._fail())  # noqa: RUF006 - that is the fault
        await self.model.chat_async([{"role": "user", "content": "hello"}])
        await asyncio.sleep(0)
        return self.finish(1.0)

    async def _fail(self) -> None:
        raise RuntimeError("nobody hears this")


class AwaitsATask(Workflow):
    """What a program awaits itself still reaches it."""

    async def run(self) -> Trajectory:
        try:
            await asyncio.ensure_future(self._fail())
        except RuntimeError as error:
            return self.finish(is_success=str(error) == "heard")
        return self.finish(0.0)

    async def _fail(self) -> None:
        raise RuntimeError("heard")


def play(workflow: type[Workflow]) -> Trajectory:
    end = int(template().end_of_turn_id or 0)
    engine = ScriptedEngine(lambda _: [*template().encode_text("hi"), end], stop_ids=template().stop_ids)
    proxy = make_proxy(engine, template(), make_states(group_size=1), workflow=workflow)
    (group,) = asyncio.run(proxy.collect([Task(tag="words", seed=0)], rollout=0))
    return group.trajectories[0]


def line_of(workflow: type[Workflow]) -> int:
    """Where the comment stands."""
    lines = Path(__file__).read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"class {workflow.__name__}("))
    return next(n for n, line in enumerate(lines) if n > start and line.endswith("# the user's line")) + 1


@pytest.mark.parametrize("workflow", [AsksWrongly, AsksWronglyInACoroutine, ReadsWrongly])
def test_a_failure_names_the_line_of_the_program_that_led_to_it(workflow: type[Workflow]) -> None:
    trajectory = play(workflow)
    assert trajectory.stop_reason is StopReason.WORKFLOW_ERROR
    assert f"({__file__}:{line_of(workflow)}, in step)" in trajectory.failure


def test_a_task_that_a_program_leaves_behind_is_not_told_of_later(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert play(LeavesATask).episode_return == 1.0
        gc.collect()
    assert "never retrieved" not in caplog.text
    assert "a task of an episode failed" in caplog.text
    assert "nobody hears this" in caplog.text


class SaysWrongly(Workflow):
    async def run(self) -> Trajectory:
        await self.model.chat_async([{"role": "user", "content": "hello"}])
        return self.finish(0.5, is_success="no")  # type: ignore[arg-type] # any text would be true


def test_what_is_no_answer_to_whether_it_succeeded_is_a_failure_of_the_program() -> None:
    played = play(SaysWrongly)
    assert (played.stop_reason, played.is_success) == (StopReason.WORKFLOW_ERROR, None)
    assert "SaysWrongly: is_success is 'no'; expected True, False" in played.failure


def test_what_a_program_awaits_reaches_it() -> None:
    assert play(AwaitsATask).is_success

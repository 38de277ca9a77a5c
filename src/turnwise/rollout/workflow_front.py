"""Plays tasks with workflows that own their world: each sibling has a program and a model handle of its own.

In: tasks. Out: plays. Whatever a user's program raises becomes data on its trajectory, with the place where it was
raised; a program that is cancelled hears of it at its next model call.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from turnwise.config.sections.context import ContextSettings
from turnwise.envs.base import BaseEnv
from turnwise.errors import ContextOverflow, EngineError, EnvError
from turnwise.floor.seeds import derive_seed
from turnwise.protocols import ChatTemplate, Engine
from turnwise.rollout.limits import Limits
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.runner import Play
from turnwise.rollout.step_wise import Workflow, WorkflowTask, segments_of_calls, turns_of_calls
from turnwise.types import Sampling, StopReason, Task, Trajectory, TrajectoryId

_MAX_THREADS = 256
"""Programs of plain code that run at the same time; further ones wait for their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What workflows of one tag are given: how to make its world, how to talk there, and for how long."""

    make_env: Callable[[str], BaseEnv]
    """From a split."""
    context: ContextSettings
    limits: Limits
    invalid_penalty: float
    workflow_args: Mapping[str, Any]


class WorkflowFront:
    """One workflow class for all tasks; see the module's text."""

    env_seconds = 0.0
    """A program's time in its own world cannot be told from its other time."""

    def __init__(
        self,
        workflow: Callable[..., Workflow],
        terms: Mapping[str, Terms],
        engine: Engine,
        template: ChatTemplate,
        *,
        group_size: int,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.group_size = group_size
        self._workflow = workflow
        self._terms = terms
        self._engine = engine
        self._template = template
        self._sampling = sampling
        self._seed = seed
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="workflow")

    def begin(self, tasks: Sequence[Task], *, rollout: int, round_number: int) -> list[Play]:
        seed = derive_seed(self._seed, "round", round_number) if round_number else self._seed
        return [
            _WorkflowPlay(self, TrajectoryId(rollout, task.id, sibling), task, seed)
            for task in tasks
            for sibling in range(self.group_size)
        ]

    def open_model(self, trajectory: TrajectoryId, tag: str, seed: int, attempt: int) -> ModelHandle:
        context = self._terms[tag].context
        return ModelHandle(
            self._engine,
            self._template,
            sampling=replace(self._sampling, max_new_tokens=context.max_response_tokens),
            max_tokens=context.max_tokens,
            seed=seed,
            name=f"{trajectory}~{attempt}" if attempt else str(trajectory),
            loop=asyncio.get_running_loop(),
        )

    async def open_workflow(self, trajectory: TrajectoryId, task: Task, model: ModelHandle, attempt: int) -> Workflow:
        own = self._terms[task.tag]
        given = WorkflowTask(
            id=trajectory,
            task=task,
            workflow_args=own.workflow_args,
            limits=own.limits,
            invalid_penalty=own.invalid_penalty,
            context=own.context,
            dynamics_seed=derive_seed(str(trajectory), *((attempt,) if attempt else ())),
            make_env=lambda: own.make_env(task.split),
            threads=self._threads,
        )
        build = partial(self._workflow, task=given, model=model)
        if not is_plain(self._workflow):
            return build()
        return await asyncio.get_running_loop().run_in_executor(self._threads, build)

    def close_later(self, workflow: Workflow) -> None:
        """Without waiting: what hangs in a step may hang in `close` as well."""
        self._threads.submit(workflow.close)


def is_plain(workflow: object) -> bool:
    """Whether a workflow is written without coroutines, so that what it does may block, its making included."""
    step = getattr(workflow, "step", None)
    return step is not None and not inspect.iscoroutinefunction(step)


class _WorkflowPlay:
    def __init__(self, front: WorkflowFront, trajectory: TrajectoryId, task: Task, seed: int) -> None:
        self._front = front
        self._id = trajectory
        self._task = task
        self._seed = seed
        self._model: ModelHandle | None = None
        self._workflow: Workflow | None = None

    async def run(self, attempt: int) -> Trajectory:
        self._model = self._front.open_model(self._id, self._task.tag, self._seed, attempt)
        self._workflow = None
        try:
            self._workflow = await self._front.open_workflow(self._id, self._task, self._model, attempt)
            trajectory = await self._workflow.run()
        except ContextOverflow as overflow:
            return self._ended(StopReason.CONTEXT_OVERFLOW, str(overflow))
        except EngineError as error:
            return self._ended(StopReason.ENGINE_ERROR, str(error))
        except EnvError as error:
            return self._ended(StopReason.ENV_ERROR, str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: a user's program may raise whatever it likes
            return self._ended(StopReason.WORKFLOW_ERROR, _tell(error))
        self._close()
        return trajectory

    def give_up(self, reason: StopReason, failure: str) -> Trajectory:
        if self._model is not None:
            self._model.cancel(failure)
        return self._ended(reason, failure)

    def _ended(self, reason: StopReason, failure: str) -> Trajectory:
        """What was sampled until then, without rewards."""
        calls = list(self._model.calls) if self._model is not None else []
        self._close()
        return Trajectory(
            id=self._id,
            task=self._task,
            segments=segments_of_calls(calls),
            turns=turns_of_calls(calls, [0.0] * len(calls), {}),
            stop_reason=reason,
            is_success=False,
            failure=failure,
        )

    def _close(self) -> None:
        if self._model is not None:
            self._model.release()
        if self._workflow is not None:
            with suppress(RuntimeError):  # the threads are gone where the run itself is ending
                self._front.close_later(self._workflow)


def _tell(error: Exception) -> str:
    """What was raised, and the innermost line of whoever raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"

"""Oracles play and the tokens they would have said are recorded, through the same loop as the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from turnwise.context.answer import render_answer
from turnwise.context.recorder import Recorder, Response, completion_of, make_trajectory
from turnwise.errors import ContextOverflow, EngineError
from turnwise.protocols import ChatTemplate
from turnwise.rollout.environment import EnvironmentWorkflow
from turnwise.types import GenerateRequest, Message, StopReason, Task, Trajectory, TrajectoryId


class DemonstrationWorkflow(EnvironmentWorkflow):
    """Plays an environment by its oracle, as if the policy had sampled the answers."""

    async def answer(self, messages: list[Message]) -> Response:
        fmt = self.task.context.answer
        text = render_answer([self.episode.oracle()], fmt).removeprefix(fmt.forced_prefix)
        return self.model.recite(messages, text, prefix=fmt.forced_prefix)


class NoEngine:
    """Stands where an engine would, for plays that ask no model."""

    policy_version = 0

    async def generate(self, request: GenerateRequest) -> NoReturn:
        raise EngineError("a demonstration asked the model; the oracle answers there.")

    def release(self, cache_key: str) -> None:
        return

    async def update_weights(self, weights: object, policy_version: int) -> None:
        return

    def state(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        return


def recite(pairs: Sequence[tuple[str, str]], template: ChatTemplate, *, max_tokens: int) -> list[Trajectory]:
    """Prompts with responses as single-turn trajectories, as if the policy had said the responses."""
    return [_recited(number, prompt, response, template, max_tokens) for number, (prompt, response) in enumerate(pairs)]


def _recited(number: int, prompt: str, response: str, template: ChatTemplate, max_tokens: int) -> Trajectory:
    recorder, completion = Recorder(template, max_tokens=max_tokens), completion_of(response, template)
    try:
        asked = recorder.prompt([Message("user", prompt)], max_new_tokens=len(completion.token_ids))
    except ContextOverflow as overflow:
        raise ContextOverflow(f"the row {prompt[:40]!r} is too long: {overflow}") from overflow
    recorder.record(asked, completion)
    task = Task(tag="recited", seed=number)
    return make_trajectory(
        TrajectoryId(0, task.id, 0),
        task,
        recorder.calls,
        {},
        is_cut_at_calls=False,
        stop_reason=StopReason.TERMINATED,
        is_success=None,
    )

"""Oracles play and the tokens they would have said are recorded, through the same context as the policy's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.config.sections.context import AnswerFormat
from turnwise.context.answer import render_answer
from turnwise.context.manager import ContextManager
from turnwise.context.transcript import Transcript
from turnwise.errors import ContextOverflow, ModelError
from turnwise.exchange import EnvOutput, LmOutput
from turnwise.protocols import ChatTemplate
from turnwise.rollout.env_manager import EnvStateManager
from turnwise.types import Completion, FinishReason, Message, StopReason, Task, Trajectory, TrajectoryId, Turn


def demonstrate(
    states: EnvStateManager,
    context: ContextManager,
    template: ChatTemplate,
    answer: AnswerFormat,
    tasks: Sequence[Task],
) -> list[Trajectory]:
    """One or more (`group_size`) oracle trajectories per task, as if the policy had sampled them."""
    running = states.begin(tasks)
    while running:
        running = [going_on for output in running for going_on in _play_turn(output, states, context, template, answer)]
    return context.formulate_rollouts(states.get_rollout_states())


def _play_turn(
    output: EnvOutput, states: EnvStateManager, context: ContextManager, template: ChatTemplate, answer: AnswerFormat
) -> list[EnvOutput]:
    try:
        context.get_lm_inputs([output])
    except ContextOverflow as error:
        states.stop(output.env_id, StopReason.CONTEXT_OVERFLOW, str(error))
        return []
    text = render_answer([states.oracle_action(output.env_id)], answer).removeprefix(answer.forced_prefix)
    completion = completion_of(text, template)
    return states.step(context.get_env_inputs([LmOutput(env_id=output.env_id, completion=completion)]))


def recite(pairs: Sequence[tuple[str, str]], template: ChatTemplate) -> list[Trajectory]:
    """Prompts with responses as single-turn trajectories, as if the policy had said the responses."""
    return [_recited(number, prompt, response, template) for number, (prompt, response) in enumerate(pairs)]


def _recited(number: int, prompt: str, response: str, template: ChatTemplate) -> Trajectory:
    transcript = Transcript()
    transcript.start_segment()
    transcript.add_context(template.encode_prompt([Message("user", prompt)]))
    transcript.add_sampled(completion_of(response, template), turn_index=0)
    task = Task(tag="recited", seed=number)
    turn = Turn(
        index=0,
        segment_index=0,
        observation=prompt,
        response_text=response,
        actions=(response,),
        reward=0.0,
        penalty=0.0,
        policy_version=0,
        info={},
    )
    return Trajectory(
        id=TrajectoryId(0, task.id, 0),
        task=task,
        segments=transcript.segments(),
        turns=(turn,),
        stop_reason=StopReason.TERMINATED,
        is_success=False,
    )


def completion_of(text: str, template: ChatTemplate) -> Completion:
    """A reply as an engine would have returned it, sampled with certainty."""
    if template.end_of_turn_id is None:
        raise ModelError(
            "the chat template closes a reply with no single token, so demonstrations cannot be written. "
            "Set warm_start.type to 'none' or use a model whose template has an end-of-turn token."
        )
    ids = np.append(template.encode_text(text), template.end_of_turn_id).astype(np.int32)
    return Completion(
        token_ids=ids,
        behavior_logprobs=np.zeros(len(ids), dtype=np.float32),
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )

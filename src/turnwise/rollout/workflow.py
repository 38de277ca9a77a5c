"""One play of a task: prompt, reply, actions, until the episode is over.

Every rollout is a workflow that runs as a task of its own and never waits for its siblings. A failure inside becomes
data on the Trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.context.manager import ContextManager
from turnwise.errors import ContextOverflow, EngineError
from turnwise.exchange import EnvOutput, LmInput, LmOutput
from turnwise.protocols import Engine
from turnwise.rollout.env_manager import EnvStateManager, derive_seed
from turnwise.types import GenerateRequest, Sampling, StopReason, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowParts:
    """What a workflow plays with; shared by all workflows of a rollout."""

    states: EnvStateManager
    context: ContextManager
    engine: Engine
    sampling: Sampling
    seed: int
    """With the episode and the turn it chooses the random numbers of each request."""
    rollout: int


class EnvironmentWorkflow:
    """The built-in workflow: the model plays an environment turn by turn."""

    def __init__(self, parts: WorkflowParts, first: EnvOutput) -> None:
        self._parts = parts
        self._first = first

    async def run(self) -> Trajectory:
        parts, env_id = self._parts, self._first.env_id
        output: EnvOutput | None = self._first
        session = ""
        while output is not None:
            try:
                (lm_input,) = parts.context.get_lm_inputs([output])
                if lm_input.session != session:
                    self._release(session)
                    session = lm_input.session
                completion = await parts.engine.generate(self._request(lm_input, turn=len(output.history)))
                if len(completion.token_ids) == 0:
                    raise EngineError("the engine returned a reply without a token; a reply has at least its end.")
            except ContextOverflow as error:
                parts.states.stop(env_id, StopReason.CONTEXT_OVERFLOW, str(error))
                break
            except EngineError as error:
                parts.states.stop(env_id, StopReason.ENGINE_ERROR, str(error))
                break
            (env_input,) = parts.context.get_env_inputs([LmOutput(env_id=env_id, completion=completion)])
            output = await parts.states.step_one(env_input)
        self._release(session)
        (trajectory,) = parts.context.formulate_rollouts(parts.states.get_rollout_states([env_id]))
        return trajectory

    def _request(self, lm_input: LmInput, turn: int) -> GenerateRequest:
        sampling = self._parts.sampling
        return GenerateRequest(
            prompt_ids=lm_input.prompt_ids,
            sampling=Sampling(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                max_new_tokens=lm_input.max_new_tokens,
            ),
            seed=derive_seed(self._parts.seed, self._parts.rollout, lm_input.env_id, turn),
            session=lm_input.session,
        )

    def _release(self, session: str) -> None:
        if session:
            self._parts.engine.release(session)

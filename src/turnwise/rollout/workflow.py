"""One play of a task in a managed environment: prompt, reply, actions, until the episode is over.

Every rollout is a workflow that runs as a task of its own and never waits for its siblings. A failure inside becomes
data on the Trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.context.manager import ContextManager
from turnwise.errors import ContextOverflow, EngineError
from turnwise.exchange import EnvOutput, LmInput, LmOutput
from turnwise.floor.seeds import derive_seed
from turnwise.protocols import Engine, Workflow
from turnwise.rollout.env_manager import EnvStateManager
from turnwise.rollout.runner import Play
from turnwise.types import GenerateRequest, Sampling, StopReason, Task, Trajectory


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

    def formulate(self, env_id: int) -> Trajectory:
        """The finished episode with its tokens."""
        (trajectory,) = self.context.formulate_rollouts(self.states.get_rollout_states([env_id]))
        return trajectory


class EnvironmentWorkflow:
    """The built-in workflow: the model plays an environment turn by turn."""

    def __init__(self, parts: WorkflowParts, first: EnvOutput) -> None:
        self._parts = parts
        self._first = first
        self._cache_key = ""

    async def run(self) -> Trajectory:
        parts, env_id = self._parts, self._first.env_id
        output: EnvOutput | None = self._first
        while output is not None:
            try:
                (lm_input,) = parts.context.get_lm_inputs([output])
                if lm_input.cache_key != self._cache_key:
                    self.release()
                    self._cache_key = lm_input.cache_key
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
        self.release()
        return parts.formulate(env_id)

    def release(self) -> None:
        """The engine may let go of what it keeps for this episode."""
        if self._cache_key:
            self._parts.engine.release(self._cache_key)
            self._cache_key = ""

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
            cache_key=lm_input.cache_key,
        )


WorkflowFactory: TypeAlias = Callable[[WorkflowParts, EnvOutput], Workflow]


class EnvironmentFront:
    """Plays in environments that an `EnvStateManager` holds, talked to by a `ContextManager`."""

    def __init__(
        self,
        states: EnvStateManager,
        context: ContextManager,
        engine: Engine,
        workflow: WorkflowFactory,
        *,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.states = states
        self.group_size = states.group_size
        self._context = context
        self._engine = engine
        self._workflow = workflow
        self._sampling = sampling
        self._seed = seed

    @property
    def env_seconds(self) -> float:
        return self.states.env_seconds

    def begin(self, tasks: Sequence[Task], *, rollout: int, round_number: int) -> list[Play]:
        parts = WorkflowParts(
            states=self.states,
            context=self._context,
            engine=self._engine,
            sampling=self._sampling,
            seed=derive_seed(self._seed, "round", round_number) if round_number else self._seed,
            rollout=rollout,
        )
        self.states.place(tasks, rollout=rollout)
        return [_EnvironmentPlay(parts, self._workflow, env_id) for env_id in range(len(tasks) * self.group_size)]


class _EnvironmentPlay:
    def __init__(self, parts: WorkflowParts, workflow: WorkflowFactory, env_id: int) -> None:
        self._parts = parts
        self._factory = workflow
        self._env_id = env_id
        self._running: Workflow | None = None

    async def run(self, attempt: int) -> Trajectory:
        states = self._parts.states
        first = await (states.restart(self._env_id, attempt) if attempt else states.start_one(self._env_id))
        if first is None:
            # An environment that failed in reset has nothing to play; its trajectory is empty and says why.
            return self._parts.formulate(self._env_id)
        self._running = self._factory(self._parts, first)
        return await self._running.run()

    def give_up(self, reason: StopReason, failure: str) -> Trajectory:
        self._parts.states.abandon(self._env_id, reason, failure)
        if isinstance(self._running, EnvironmentWorkflow):
            self._running.release()
        return self._parts.formulate(self._env_id)

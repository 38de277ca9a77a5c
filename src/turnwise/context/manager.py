"""Histories become token prompts, replies become actions, finished episodes become trajectories.

In: what environments say and engines sample. Out: prompts, actions and Trajectories whose segments are exactly the
tokens that went through the engine. It holds one recorder for each environment of a rollout that is driven by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.config.schema import ContextSettings
from turnwise.context.answer import build_messages, parse_answer
from turnwise.context.recorder import Prompt, Recorder, completion_from_text, make_trajectory
from turnwise.context.template import HFChatTemplate
from turnwise.context.tokenizer import HFTokenizer
from turnwise.errors import WorkflowError
from turnwise.protocols import ChatTemplate
from turnwise.rollout_io import EnvInput, EnvOutput, LmInput, LmOutput, RolloutState
from turnwise.types import Trajectory


class ContextManager:
    """The conversations of one rollout, by env id. A first state (a history of one entry) begins a new one."""

    def __init__(
        self,
        template: ChatTemplate | HFTokenizer,
        settings: ContextSettings | Mapping[str, ContextSettings] = ContextSettings(),  # noqa: B008 - frozen
    ) -> None:
        """`template`, or the tokenizer that has it; `settings` are for all environments, or for each tag its own."""
        self._template = HFChatTemplate(template) if isinstance(template, HFTokenizer) else template
        self._settings = settings
        self._recorders: dict[int, Recorder] = {}
        self._waiting: dict[int, tuple[Prompt, ContextSettings]] = {}
        """Prompts that an engine has not answered yet."""

    def get_lm_inputs(self, env_outputs: Sequence[EnvOutput | Mapping[str, Any]]) -> list[LmInput]:
        """The tokens to continue for each environment; raises ContextOverflow where a reply no longer fits."""
        return [self._lm_input(EnvOutput.read(output)) for output in env_outputs]

    def get_env_inputs(self, lm_outputs: Sequence[LmOutput | Mapping[str, Any]]) -> list[EnvInput]:
        """Record what was sampled and read the actions from a decoded copy.

        A dictionary holds `env_id` and `completion`. One with `llm_response` in its place, a text that no engine here
        sampled, is recorded as if it had been sampled with certainty: good for play and demonstrations.
        """
        return [self._env_input(self._read_output(output)) for output in lm_outputs]

    def formulate_rollouts(self, env_outputs: Sequence[EnvOutput | Mapping[str, Any]]) -> list[Trajectory]:
        """Episodes with their tokens; their conversations are forgotten.

        `EnvStateManager.get_rollout_states()` says how each ended; an output that does not counts as truncated.
        """
        return [self._trajectory(RolloutState.read(output)) for output in env_outputs]

    def _lm_input(self, output: EnvOutput) -> LmInput:
        settings = self._settings[output.tag] if isinstance(self._settings, Mapping) else self._settings
        if len(output.history) == 1:
            self._recorders[output.env_id] = Recorder(self._template, max_tokens=settings.max_tokens)
        prompt = self._recorder_of(output.env_id).prompt(
            build_messages(output.about, output.history, settings),
            max_new_tokens=settings.max_response_tokens,
            prefix=settings.answer.forced_prefix,
        )
        self._waiting[output.env_id] = prompt, settings
        return LmInput(
            env_id=output.env_id,
            prompt_ids=prompt.ids,
            max_new_tokens=settings.max_response_tokens,
            cache_key=str(output.env_id),
        )

    def _recorder_of(self, env_id: int) -> Recorder:
        if env_id not in self._recorders:
            raise WorkflowError(f"env_id {env_id} has no conversation here; it begins with a history of one state.")
        return self._recorders[env_id]

    def _read_output(self, given: LmOutput | Mapping[str, Any]) -> LmOutput:
        if isinstance(given, LmOutput) or not isinstance(given.get("llm_response"), str):
            return LmOutput.read(given)
        return LmOutput.read({**given, "completion": completion_from_text(given["llm_response"], self._template)})

    def _env_input(self, output: LmOutput) -> EnvInput:
        if output.env_id not in self._waiting:
            raise WorkflowError(f"env_id {output.env_id} waits for no reply; call get_lm_inputs with its state first.")
        recorder, (prompt, settings) = self._recorders[output.env_id], self._waiting.pop(output.env_id)
        reply = recorder.record(prompt, output.completion, step=len(recorder.calls))
        parsed = parse_answer(reply.response_text, settings.answer)
        return EnvInput(
            env_id=output.env_id,
            actions=parsed.actions,
            llm_response=reply.response_text,
            is_well_formed=parsed.is_well_formed,
        )

    def _trajectory(self, state: RolloutState) -> Trajectory:
        recorder = self._recorders.pop(state.env_id, None)
        num_played = len(state.history) - 1
        if recorder is None and num_played:
            raise WorkflowError(
                f"env_id {state.env_id} was played without get_lm_inputs, so there are no tokens of it."
            )
        calls = recorder.calls if recorder is not None else []
        return make_trajectory(
            state.id,
            state.task,
            calls,
            dict(enumerate(state.history[: len(calls)])),
            is_cut_at_calls=False,
            stop_reason=state.stop_reason,
            is_success=state.is_success,
            final_observation=state.history[-1].state,
            failure=state.failure,
        )

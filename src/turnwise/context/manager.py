"""Histories become token prompts, replies become actions, finished episodes become trajectories.

In: what environments say and engines sample. Out: prompts, actions and Trajectories whose segments are exactly the
tokens that went through the engine. Windows change what the model sees next; they never delete what was played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from turnwise.config.sections.context import ContextSettings
from turnwise.context.answer import format_instructions, parse_answer
from turnwise.context.transcript import Transcript
from turnwise.errors import ContextOverflow
from turnwise.exchange import EnvDescription, EnvInput, EnvOutput, HistoryEntry, LmInput, LmOutput, RolloutState
from turnwise.protocols import ChatTemplate
from turnwise.types import Completion, FinishReason, IntArray, Message, Trajectory, Turn


def write_preamble(description: EnvDescription, settings: ContextSettings) -> str:
    """What stands before the first state: rules, symbols, actions and the answer format."""
    if settings.instructions == "none":
        return ""
    lines = [description.instructions, description.legend]
    if description.action_names:
        lines.append(f"Actions: {', '.join(description.action_names)}.")
    lines.append(format_instructions(settings.answer))
    return "\n".join(line for line in lines if line) + "\n\n"


@dataclass(frozen=True, slots=True)
class _Reply:
    """What is remembered of one sampled reply beside its tokens."""

    segment_index: int
    policy_version: int
    text: str
    is_closed: bool


@dataclass(slots=True)
class _Conversation:
    settings: ContextSettings
    transcript: Transcript = field(default_factory=Transcript)
    replies: list[_Reply] = field(default_factory=list)


class ContextManager:
    """The conversations of one rollout, by env id. A first state (a history of one entry) begins a new one."""

    def __init__(self, template: ChatTemplate, settings: ContextSettings | Mapping[str, ContextSettings]) -> None:
        """`settings` are for all environments, or for each tag its own."""
        self._template = template
        self._settings = settings
        self._conversations: dict[int, _Conversation] = {}

    def get_lm_inputs(self, env_outputs: Sequence[EnvOutput]) -> list[LmInput]:
        """The tokens to continue for each environment; raises ContextOverflow where a reply no longer fits."""
        return [self._lm_input(output) for output in env_outputs]

    def get_env_inputs(self, lm_outputs: Sequence[LmOutput]) -> list[EnvInput]:
        """Record what was sampled and read the actions from a decoded copy."""
        return [self._env_input(output) for output in lm_outputs]

    def formulate_rollouts(self, rollout_states: Sequence[RolloutState]) -> list[Trajectory]:
        """Finished episodes with their tokens; their conversations are forgotten."""
        return [self._trajectory(state) for state in rollout_states]

    # --- towards the model ---------------------------------------------------------------------------------------

    def _lm_input(self, output: EnvOutput) -> LmInput:
        if len(output.history) == 1:
            self._conversations[output.env_id] = _Conversation(self._settings_of(output.tag))
        conversation = self._conversations[output.env_id]
        transcript, settings = conversation.transcript, conversation.settings
        goes_on = bool(conversation.replies) and settings.window == "full" and not self._template.rewrites_history
        context = self._context_ids(conversation, output, goes_on=goes_on)
        # Checked before anything is written: a segment holds only what an engine saw, and never outgrows max_tokens.
        num_tokens = len(context) + (transcript.num_tokens if goes_on else 0)
        if num_tokens + settings.max_response_tokens > settings.max_tokens:
            raise ContextOverflow(
                f"{num_tokens} tokens and a reply of up to {settings.max_response_tokens} do not fit into "
                f"context.max_tokens = {settings.max_tokens}. Raise it, or choose a shorter context.window."
            )
        if not goes_on:
            transcript.start_segment()
        transcript.add_context(context)
        return LmInput(
            env_id=output.env_id,
            prompt_ids=transcript.current_ids,
            max_new_tokens=settings.max_response_tokens,
            cache_key=f"{output.env_id}#{transcript.segment_index}",
        )

    def _context_ids(self, conversation: _Conversation, output: EnvOutput, *, goes_on: bool) -> IntArray:
        """What the model has not seen yet: a bridge where the sequence goes on, else a prompt of its own."""
        if goes_on:
            is_closed = conversation.replies[-1].is_closed
            ids = self._template.encode_bridge(output.history[-1].state, reply_is_closed=is_closed)
        else:
            ids = self._template.encode_prompt(self._messages(output, conversation))
        prefix = conversation.settings.answer.forced_prefix
        return np.concatenate([ids, self._template.encode_text(prefix)]) if prefix else ids

    def _messages(self, output: EnvOutput, conversation: _Conversation) -> list[Message]:
        """The part of the history that the window shows, as a conversation."""
        settings = conversation.settings
        shown = output.history[-count_shown(len(output.history), settings) :]
        replies = conversation.replies[len(output.history) - len(shown) :]
        messages = [Message("system", settings.system_prompt)] if settings.system_prompt else []
        for number, entry in enumerate(shown):
            preamble = write_preamble(output.about, settings) if number == 0 else ""
            messages.append(Message("user", preamble + entry.state))
            if number < len(replies):
                messages.append(Message("assistant", settings.answer.forced_prefix + replies[number].text))
        return messages

    def _settings_of(self, tag: str) -> ContextSettings:
        return self._settings[tag] if isinstance(self._settings, Mapping) else self._settings

    # --- back from the model -------------------------------------------------------------------------------------

    def _env_input(self, output: LmOutput) -> EnvInput:
        conversation, completion = self._conversations[output.env_id], output.completion
        text = self._template.decode_reply(completion.token_ids)
        reply = _Reply(
            segment_index=conversation.transcript.segment_index,
            policy_version=completion.policy_version,
            text=text,
            is_closed=self._is_closed(completion),
        )
        conversation.transcript.add_sampled(completion, turn_index=len(conversation.replies))
        conversation.replies.append(reply)
        answer = conversation.settings.answer
        parsed = parse_answer(answer.forced_prefix + text, answer)
        return EnvInput(
            env_id=output.env_id,
            actions=parsed.actions,
            llm_response=answer.forced_prefix + text,
            is_well_formed=parsed.is_well_formed,
        )

    def _is_closed(self, completion: Completion) -> bool:
        """Whether the reply ended as the template ends it; another stop token still needs the end of turn behind it."""
        if self._template.end_of_turn_id is None:
            return completion.finish_reason is FinishReason.STOP
        return len(completion.token_ids) > 0 and int(completion.token_ids[-1]) == self._template.end_of_turn_id

    def _trajectory(self, state: RolloutState) -> Trajectory:
        conversation = self._conversations.pop(state.env_id, None) or _Conversation(self._settings_of(state.tag))
        played = zip(state.history, conversation.replies, strict=False)
        return Trajectory(
            id=state.id,
            task=state.task,
            segments=conversation.transcript.segments(),
            turns=tuple(_turn(index, entry, reply) for index, (entry, reply) in enumerate(played)),
            stop_reason=state.stop_reason,
            is_success=state.is_success,
            final_observation=state.history[-1].state,
            failure=state.failure,
        )


def count_shown(num_turns: int, settings: ContextSettings) -> int:
    """How many of the turns so far the window shows, the current one included."""
    match settings.window:
        case "full":
            return num_turns
        case "sliding":
            return min(settings.window_turns, num_turns)
        case "single_turn":
            return 1


def _turn(index: int, entry: HistoryEntry, reply: _Reply) -> Turn:
    return Turn(
        index=index,
        segment_index=reply.segment_index,
        observation=entry.state,
        response_text=entry.llm_response,
        actions=entry.actions,
        reward=entry.reward,
        penalty=entry.penalty,
        policy_version=reply.policy_version,
        info=entry.info,
    )

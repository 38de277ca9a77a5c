"""The tokens of one episode: conversations become prompts, completions become what is trained.

In come conversations and what an engine sampled; out come prompts, and in the end Segments. A conversation that goes on
is continued token by token: the ids that were sampled stay, and only what is new is encoded. So the prompt of one call
extends the whole of the call before, whatever the text would be re-tokenised to. It refuses to know engines,
environments and rewards.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from turnwise.context.messages import short_id
from turnwise.errors import ContextOverflow, EngineError, ModelError
from turnwise.protocols import ChatTemplate
from turnwise.rollout_io import TurnFacts
from turnwise.types import (
    Completion,
    FinishReason,
    FloatArray,
    Info,
    IntArray,
    Message,
    Metrics,
    Segment,
    Task,
    ToolCall,
    ToolSchema,
    Trajectory,
    TrajectoryId,
    Turn,
)


@dataclass(slots=True)
class _Open:
    """A segment that still grows; the four lists grow together."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    behavior_logprobs: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)

    def close(self) -> Segment:
        return Segment(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            loss_mask=np.array(self.loss_mask, dtype=np.bool_),
            behavior_logprobs=np.array(self.behavior_logprobs, dtype=np.float32),
            turn_ids=np.array(self.turn_ids, dtype=np.int32),
        )


class Transcript:
    """Collects the tokens of one episode; a mask bit is written by the call that writes its token.

    Example, the two turns of `types.Segment`::

        transcript.add_context(template.encode_prompt(messages))
        transcript.add_sampled(completion, turn_index=0)
        transcript.add_context(template.encode_continuation([Message("user", "_POG")], reply_is_closed=True))
        transcript.add_sampled(completion, turn_index=1)
        (segment,) = transcript.segments()
    """

    def __init__(self) -> None:
        self._segments = [_Open()]
        self._num_kept = 0

    def add_context(self, token_ids: IntArray) -> None:
        """Tokens that the policy did not sample: prompts, bridges, forced prefixes. Never trained."""
        num_new = len(token_ids)
        current = self._segments[-1]
        current.token_ids.extend(token_ids.tolist())
        current.loss_mask.extend([False] * num_new)
        current.behavior_logprobs.extend([0.0] * num_new)
        current.turn_ids.extend([-1] * num_new)

    def add_sampled(self, completion: Completion, turn_index: int) -> None:
        """Tokens that the policy sampled in this turn, the sampled end of turn included."""
        if turn_index < 0:
            raise ValueError(f"turn_index is {turn_index}; turns count from 0")
        num_new = len(completion.token_ids)
        current = self._segments[-1]
        current.token_ids.extend(completion.token_ids.tolist())
        current.loss_mask.extend([True] * num_new)
        current.behavior_logprobs.extend(completion.behavior_logprobs.tolist())
        current.turn_ids.extend([turn_index] * num_new)

    def start_segment(self) -> None:
        """The engine will see a new sequence: what is added next has nothing before it."""
        if self._segments[-1].token_ids:
            self._num_kept += any(self._segments[-1].loss_mask)
            self._segments.append(_Open())

    @property
    def current_ids(self) -> IntArray:
        """Everything of the current segment: what the engine must see to continue it."""
        return np.array(self._segments[-1].token_ids, dtype=np.int32)

    @property
    def num_tokens(self) -> int:
        """The length of the current segment, which is what must fit into the model's context."""
        return len(self._segments[-1].token_ids)

    @property
    def segment_index(self) -> int:
        """The place in `segments()` that the current segment has, or will have once something is sampled in it."""
        return self._num_kept

    def segments(self) -> tuple[Segment, ...]:
        """Every segment with at least one sampled token, in order.

        A segment without one teaches nothing: it is a prompt whose turn never came (the engine failed, or the episode
        was stopped by a budget after the cut).
        """
        return tuple(segment.close() for segment in self._segments if any(segment.loss_mask))


_NOTHING = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """One call of the model: what it saw, what it sampled, and the text of that.

    Example, turn 1 of the running example: `before` is turn 0's call, `context_ids` is the bridge `<user> _POG
    <assistant>`, and the completion holds `Down <end>`.
    """

    response_text: str
    """The reply, the forced prefix included, without the end of turn."""
    message: Message
    """The same as a message: what it says, and the tools that it calls."""
    observation: str
    """The last message the model was given."""
    before: Response | None
    """The call whose tokens this one goes on from; None where the prompt stands alone."""
    context_ids: IntArray
    """What stands between those tokens and the reply; the whole prompt where there are none."""
    prompt_length: int
    completion: Completion
    step: int
    """The step of the workflow that made the call."""
    is_anew: bool = False
    """Whether replies stand in its conversation, and none that it could go on from: it needs a row of its own."""
    reward: float = 0.0
    """Of its step, where a workflow is asked for a reward: what it earned so far; below, what else is known."""
    metrics: Metrics = field(default_factory=dict)
    info: Info = field(default_factory=dict)

    @property
    def prompt_ids(self) -> IntArray:
        """All that the engine was given."""
        parts = [self.context_ids]
        earlier = self.before
        while earlier is not None:
            parts += [earlier.completion.token_ids, earlier.context_ids]
            earlier = earlier.before
        return np.concatenate(parts[::-1])

    @property
    def tokens(self) -> IntArray:
        """What was sampled, the end of turn included."""
        return self.completion.token_ids

    @property
    def logprobs(self) -> FloatArray:
        """Of exactly these tokens, as they were sampled."""
        return self.completion.behavior_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a reply is read for whoever asked. What was sampled is the same, and so is what is trained."""

    stop: tuple[str, ...] = ()
    """Texts that end a reply where they first stand: what was sampled later is dropped, they themselves not told."""
    takes_calls: bool = True
    """Whether calls of tools are read as such; otherwise they are text."""
    takes_many_calls: bool = True
    """Whether a reply may hold several calls; otherwise the first counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompt:
    """What an engine is to continue."""

    messages: tuple[Message, ...]
    prefix: str
    tools: tuple[ToolSchema, ...]
    before: Response | None
    context_ids: IntArray
    ids: IntArray
    """Everything: the tokens of `before`, and `context_ids`."""


class Recorder:
    """Every call of one episode; `calls` holds them step by step.

    Example, the two turns of `types.Segment`::

        prompt = recorder.prompt([Message("user", "P_OG")], max_new_tokens=8)
        reply = recorder.record(prompt, completion)
        prompt = recorder.prompt([*messages, Message("assistant", reply.response_text), Message("user", "_POG")], ...)
    """

    def __init__(self, template: ChatTemplate, *, max_tokens: int) -> None:
        self._template = template
        self._max_tokens = max_tokens
        self._said: dict[tuple[Message, ...], Response] = {}
        """Conversations up to and including a sampled reply."""
        self._call_ids: set[str] = set()
        self._newest: Response | None = None
        self._newest_ids: IntArray = _NOTHING
        """All tokens of the newest call: most prompts go on from it."""
        self.calls: list[Response] = []

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        max_new_tokens: int,
        prefix: str = "",
        tools: Sequence[ToolSchema] = (),
    ) -> Prompt:
        """The tokens to continue; raises ContextOverflow where a reply no longer fits behind them."""
        said = tuple(messages)
        self._refuse_endless(said, tools, prefix)
        before, context = self._encode(said, tools)
        if prefix:
            context = np.concatenate([context, self._template.encode_text(prefix)])
        ids = context if before is None else np.concatenate([self._ids_of(before), context])
        # Checked before anything is written: a segment holds only what an engine saw, and never outgrows max_tokens.
        if len(ids) + max_new_tokens > self._max_tokens:
            raise ContextOverflow(
                f"{len(ids)} tokens and a reply of up to {max_new_tokens} do not fit into context.max_tokens = "
                f"{self._max_tokens}. Raise it, keep fewer messages, or choose a shorter context.window."
            )
        return Prompt(messages=said, prefix=prefix, tools=tuple(tools), before=before, context_ids=context, ids=ids)

    def record(
        self,
        prompt: Prompt,
        completion: Completion,
        *,
        step: int = 0,
        reading: Reading = Reading(),  # noqa: B008
    ) -> Response:
        """Write down what was sampled; from here on, conversations may go on from it."""
        completion = cut_at_stop(completion, reading.stop, self._template.decode_reply)
        if len(completion.token_ids) == 0:
            raise EngineError("the engine returned a reply without a token; a reply has at least its end.")
        if len(prompt.ids) + len(completion.token_ids) > self._max_tokens:
            # Whoever is asked in messages counts its own tokens, and knows nothing of these.
            raise ContextOverflow(
                f"{len(prompt.ids)} tokens and a reply of {len(completion.token_ids)}, counted with the tokenizer of "
                f"model.path, do not fit into context.max_tokens = {self._max_tokens}. Raise it."
            )
        text = completion.text
        if text is None:
            text = prompt.prefix + self._template.decode_reply(completion.token_ids)
        shown = text[: _find_stop(text, reading.stop, len(prompt.prefix))]
        response = Response(
            response_text=shown,
            message=self._read(shown, reading),
            observation=prompt.messages[-1].text,
            before=prompt.before,
            context_ids=prompt.context_ids,
            prompt_length=len(prompt.ids),
            completion=completion,
            step=step,
            is_anew=prompt.before is None and any(message.role == "assistant" for message in prompt.messages),
        )
        # Of calls that run side by side a later step may be answered first.
        insort(self.calls, response, key=lambda call: call.step)
        self._newest, self._newest_ids = response, np.concatenate([prompt.ids, completion.token_ids])
        # A program may give a call back as it was read or as it was written, and with what stopped it or without. Of
        # replies with equal texts the first stands for all: text is how a program says which one goes on.
        for reply in {Message("assistant", text), Message("assistant", shown), response.message}:
            self._said.setdefault(_key_of((*prompt.messages, reply)), response)
        return response

    def _refuse_endless(self, messages: tuple[Message, ...], tools: Sequence[ToolSchema], prefix: str) -> None:
        """What can never fit is not cut into tokens first: a text of megabytes would hold everyone else up."""
        length = (
            len(prefix)
            + sum(len(message.text) for message in messages)
            + sum(len(str(tool.to_mapping())) for tool in tools)
        )
        if length > self._template.longest_token * self._max_tokens:
            raise ContextOverflow(
                f"{length:,} characters do not fit into context.max_tokens = {self._max_tokens}, whatever they say: no "
                f"token is longer than {self._template.longest_token}. Raise it, or say less."
            )

    def _read(self, text: str, reading: Reading) -> Message:
        if not reading.takes_calls:
            return Message("assistant", text)
        message = self._template.parse_reply(text)
        calls = message.tool_calls if reading.takes_many_calls else message.tool_calls[:1]
        return replace(message, tool_calls=tuple(map(self._name_apart, calls)))

    def _name_apart(self, call: ToolCall) -> ToolCall:
        """A reply that was given before, word for word, has calls of its own: results name the one that they answer."""
        identity = call.id
        while identity in self._call_ids:
            identity = short_id(f"{len(self._call_ids)} {identity}")
        self._call_ids.add(identity)
        return replace(call, id=identity)

    def _encode(self, messages: tuple[Message, ...], tools: Sequence[ToolSchema]) -> tuple[Response | None, IntArray]:
        """The call that a conversation goes on from, and the tokens behind it."""
        end = next((n for n in range(len(messages), 0, -1) if messages[n - 1].role == "assistant"), 0)
        before, new = self._said.get(_key_of(messages[:end])), messages[end:]
        if before is None or not new or not self._template.can_extend(new, tools):
            return None, self._template.encode_prompt(messages, tools)
        is_closed = self._template.is_closed(before.completion)
        return before, self._template.encode_continuation(new, reply_is_closed=is_closed, tools=tools)

    def _ids_of(self, response: Response) -> IntArray:
        if response is self._newest:
            return self._newest_ids
        return np.concatenate([response.prompt_ids, response.completion.token_ids])


def _key_of(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What makes two conversations the same: programs trim replies, and name the calls in them as they like."""
    return tuple(_plain(message) if message.role == "assistant" else message for message in messages)


def _plain(reply: Message) -> Message:
    calls = tuple(ToolCall(call.name, call.arguments) for call in reply.tool_calls)
    return Message("assistant", reply.text.strip(), calls)


def cut_at_stop(completion: Completion, stop: Sequence[str], decode: Callable[[IntArray], str]) -> Completion:
    """Up to and including the token with which the first of the texts is complete; all where none is in there."""
    ids = completion.token_ids
    if not stop or not _holds(decode(ids), stop):
        return completion
    # What holds such a text goes on holding it.
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _holds(decode(ids[:middle]), stop) else (middle + 1, high)
    return replace(
        completion,
        token_ids=ids[:low],
        behavior_logprobs=completion.behavior_logprobs[:low],
        alternatives=None if completion.alternatives is None else completion.alternatives.first(low),
        finish_reason=FinishReason.STOP,
    )


def _holds(text: str, stop: Sequence[str]) -> bool:
    return any(word in text for word in stop)


def _find_stop(text: str, stop: Sequence[str], start: int) -> int:
    """Where the first of the texts stands behind `start`, and the end where none does."""
    places = [place for word in stop if (place := text.find(word, start)) >= 0]
    return min(places, default=len(text))


def split_segments(calls: Sequence[Response], *, at_calls: bool) -> tuple[tuple[Segment, ...], list[int]]:
    """The tokens of calls in order, and the segment of each: unbroken sequences, or one for each call."""
    transcript, segment_of_call = Transcript(), []
    for number, call in enumerate(calls):
        # Only neighbours are joined, so that the turns of a segment stay without gaps.
        is_continued = not at_calls and number > 0 and call.before is calls[number - 1]
        if not is_continued:
            transcript.start_segment()
        transcript.add_context(call.context_ids if is_continued else call.prompt_ids)
        transcript.add_sampled(call.completion, number)
        segment_of_call.append(transcript.segment_index)
    return transcript.segments(), segment_of_call


def require_end_of_turn(template: ChatTemplate) -> int:
    """The token that closes a reply, for whoever writes replies themselves."""
    if template.end_of_turn_id is None:
        raise ModelError(
            "the chat template closes a reply with no single token, so demonstrations cannot be written. "
            "Set warm_start.type to 'none' or use a model whose template has an end-of-turn token."
        )
    return template.end_of_turn_id


def completion_from_text(text: str, template: ChatTemplate) -> Completion:
    """A reply as an engine would have returned it, sampled with certainty."""
    ids = np.append(template.encode_text(text), require_end_of_turn(template)).astype(np.int32)
    return Completion(
        token_ids=ids,
        behavior_logprobs=np.zeros(len(ids), dtype=np.float32),
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )


_NOTHING_TRAJECTORY = TurnFacts()


def make_trajectory(
    id: TrajectoryId,
    task: Task,
    calls: Sequence[Response],
    facts: Mapping[int, TurnFacts],
    *,
    is_cut_at_calls: bool,
    **outcome: Any,
) -> Trajectory:
    """Calls and what is known of their steps as a trajectory; `outcome` says how it ended."""
    segments, segment_of_call = split_segments(calls, at_calls=is_cut_at_calls)
    turns = tuple(
        Turn(
            index=number,
            segment_index=segment_index,
            observation=_observation(number, calls, facts),
            response_text=call.response_text,
            actions=known.actions,
            reward=known.reward,
            penalty=known.penalty,
            policy_version=call.completion.policy_version,
            step=call.step,
            is_valid=known.is_valid,
            is_effective=known.is_effective,
            metrics=known.metrics,
            info=known.info,
            origin=call.completion.origin,
        )
        for number, (call, known, segment_index) in enumerate(
            zip(calls, _facts_of_calls(facts, calls), segment_of_call, strict=True)
        )
    )
    return Trajectory(id=id, task=task, segments=segments, turns=turns, **outcome)


def _facts_of_calls(facts: Mapping[int, TurnFacts], calls: Sequence[Response]) -> list[TurnFacts]:
    """The facts of a step stand on its last call; those of a step without one, on the last call before it."""
    last_of_step = {call.step: number for number, call in enumerate(calls)}
    found = [_NOTHING_TRAJECTORY] * len(calls)
    for step, known in facts.items() if calls else ():
        number = last_of_step.get(step)
        if number is None:
            number = max((n for n, call in enumerate(calls) if call.step < step), default=0)
        if (before := found[number]) is not _NOTHING_TRAJECTORY:
            known = replace(known, reward=before.reward + known.reward, penalty=before.penalty + known.penalty)
        found[number] = known
    return found


def _observation(number: int, calls: Sequence[Response], facts: Mapping[int, TurnFacts]) -> str:
    """What the world said before the first call of a step, without what was written around it; then what was said."""
    call = calls[number]
    is_first = number == 0 or calls[number - 1].step != call.step
    state = facts[call.step].state if is_first and call.step in facts else None
    return call.observation if state is None else state

"""The model as a workflow's own program sees it: messages in, texts out, and every token recorded where it was sampled.

A conversation that goes on is continued token by token: the ids that were sampled stay, and only what is new is
encoded. So the prompt of one call extends the whole of the call before, whatever the text would be re-tokenised to. It
refuses to know environments and rewards.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from turnwise.context.transcript import Transcript
from turnwise.errors import ContextOverflow, EngineError, WorkflowError
from turnwise.floor.seeds import derive_seed
from turnwise.protocols import ChatTemplate, Engine
from turnwise.types import Completion, FloatArray, GenerateRequest, IntArray, Message, Sampling, Segment

ChatMessage: TypeAlias = Message | Mapping[str, str]
"""A message, or the dictionary that chat APIs know: `{"role": "user", "content": "…"}`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """One call of the model: what it saw, what it sampled, and the text of that."""

    response_text: str
    """The reply, the forced prefix included, without the end of turn."""
    observation: str
    """The last message the model was given."""
    prompt_ids: IntArray
    completion: Completion
    step: int
    """The step of the workflow that made the call."""

    @property
    def tokens(self) -> IntArray:
        """What was sampled, the end of turn included."""
        return self.completion.token_ids

    @property
    def logprobs(self) -> FloatArray:
        """Of exactly these tokens, as they were sampled."""
        return self.completion.behavior_logprobs

    @property
    def prompt_length(self) -> int:
        return len(self.prompt_ids)

    def as_segment(self, turn_index: int) -> Segment:
        transcript = Transcript()
        transcript.add_context(self.prompt_ids)
        transcript.add_sampled(self.completion, turn_index)
        (segment,) = transcript.segments()
        return segment


@dataclass(frozen=True, slots=True)
class _Said:
    """A conversation up to and including a sampled reply, as the engine has it."""

    ids: IntArray
    is_closed: bool


class ModelHandle:
    """The model for one episode; `calls` holds everything it was asked, step by step.

    Synchronous programs call `chat`, in whatever thread they run; coroutines await `chat_async`.
    """

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int,
        name: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`sampling` is how tokens are drawn where a call does not say otherwise; `name` is the episode's."""
        self._engine = engine
        self._template = template
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._seed = seed
        self._name = name
        self._loop = loop
        self._said: dict[tuple[Message, ...], _Said] = {}
        self._num_requests = 0
        self._cancelled = ""
        self.step = 0
        """The step that new calls belong to."""
        self.calls: list[Response] = []

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float | None = None,
        max_tokens: int | None = None,
        prefix: str = "",
    ) -> list[Response]:
        """`n` replies to a conversation; waits for them, so it is for programs that run in a thread of their own."""
        self._refuse_if_cancelled()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asked = self.chat_async(messages, n=n, temperature=temperature, max_tokens=max_tokens, prefix=prefix)
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        raise WorkflowError("model.chat was called in a coroutine, where it would wait for itself. Await chat_async.")

    async def chat_async(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float | None = None,
        max_tokens: int | None = None,
        prefix: str = "",
    ) -> list[Response]:
        """`n` replies to a conversation; `prefix` begins each reply and is never trained."""
        if n < 1:
            raise WorkflowError(f"n = {n} replies were asked for; expected at least 1.")
        sampling = replace(
            self._sampling,
            temperature=self._sampling.temperature if temperature is None else temperature,
            max_new_tokens=self._sampling.max_new_tokens if max_tokens is None else max_tokens,
        )
        said = _read_messages(messages)
        step = self.step
        prompt_ids = self._encode(said, prefix)
        self._check_length(prompt_ids, sampling)
        requests = [self._request(prompt_ids, sampling) for _ in range(n)]
        completions = await asyncio.gather(*map(self._engine.generate, requests))
        self._refuse_if_cancelled()
        return [self._record(said, prefix, prompt_ids, completion, step) for completion in completions]

    def decode(self, token_ids: IntArray) -> str:
        """The text of sampled tokens, without the end of turn."""
        return self._template.decode_reply(token_ids)

    def calls_of(self, step: int) -> list[Response]:
        return [call for call in self.calls if call.step == step]

    def cancel(self, reason: str) -> None:
        """Whatever still asks the model for this episode hears that it is over."""
        self._cancelled = reason

    def release(self) -> None:
        """The episode is over: what engines keep for it may go."""
        self._engine.release(self._name)

    # --- one call ------------------------------------------------------------------------------------------------

    def _encode(self, messages: tuple[Message, ...], prefix: str) -> IntArray:
        """The tokens the engine is to continue."""
        before = self._said.get(messages[:-1]) if messages[-1].role == "user" else None
        if before is not None and not self._template.rewrites_history:
            bridge = self._template.encode_bridge(messages[-1].content, reply_is_closed=before.is_closed)
            ids = np.concatenate([before.ids, bridge])
        else:
            ids = self._template.encode_prompt(messages)
        return np.concatenate([ids, self._template.encode_text(prefix)]) if prefix else ids

    def _check_length(self, prompt_ids: IntArray, sampling: Sampling) -> None:
        if len(prompt_ids) + sampling.max_new_tokens > self._max_tokens:
            raise ContextOverflow(
                f"{len(prompt_ids)} tokens and a reply of up to {sampling.max_new_tokens} do not fit into "
                f"context.max_tokens = {self._max_tokens}. Raise it, or keep fewer messages."
            )

    def _request(self, prompt_ids: IntArray, sampling: Sampling) -> GenerateRequest:
        self._refuse_if_cancelled()
        self._num_requests += 1
        seed = derive_seed(self._seed, self._name, self._num_requests)
        return GenerateRequest(prompt_ids=prompt_ids, sampling=sampling, seed=seed, cache_key=self._name)

    def _record(
        self, messages: tuple[Message, ...], prefix: str, prompt_ids: IntArray, completion: Completion, step: int
    ) -> Response:
        if len(completion.token_ids) == 0:
            raise EngineError("the engine returned a reply without a token; a reply has at least its end.")
        response = Response(
            response_text=prefix + self.decode(completion.token_ids),
            observation=messages[-1].content,
            prompt_ids=prompt_ids,
            completion=completion,
            step=step,
        )
        # Of calls that run side by side a later step may be answered first.
        insort(self.calls, response, key=lambda call: call.step)
        conversation = (*messages, Message("assistant", response.response_text))
        is_closed = int(completion.token_ids[-1]) == self._template.end_of_turn_id
        # Of replies with equal texts the first stands for all: text is how a program says which one goes on.
        self._said.setdefault(conversation, _Said(np.concatenate([prompt_ids, completion.token_ids]), is_closed))
        return response

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise WorkflowError(f"the episode is over: {self._cancelled}")


def _read_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    if isinstance(messages, str | Mapping) or not messages:
        raise WorkflowError(f"messages are {messages!r}; expected a list such as [{{'role': 'user', 'content': '…'}}].")
    return tuple(_read_message(message) for message in messages)


def _read_message(message: ChatMessage) -> Message:
    if isinstance(message, Message):
        return message
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise WorkflowError(f"message {dict(message)!r}; expected texts under 'role' and 'content'.")
    return Message(role, content)

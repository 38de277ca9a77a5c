"""Chat interface to the engine for one episode.

`ModelHandle` samples replies, records their tokens and log-probs, and derives per-request seeds from the episode id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from turnwise.context.messages import read_message
from turnwise.context.recorder import Prompt, Reading, Recorder, Response, completion_from_text
from turnwise.errors import WorkflowError
from turnwise.infra.seeds import derive_seed
from turnwise.infra.threads import is_in_event_loop
from turnwise.infra.wait_tracking import waiting
from turnwise.protocols import ChatTemplate, Engine
from turnwise.types import Asked, Completion, GenerateRequest, IntArray, Message, Sampling, ToolSchema

HALF_A_CHARACTER = "\ufffd"
"""What bytes decode to that are no text, or none yet."""
_KEPT_CHARACTERS = 16
"""Of the text so far, at least; a longer window is decoded more, a shorter one moved more often."""

ChatMessage: TypeAlias = Message | Mapping[str, Any]
"""A message, or the dictionary that chat APIs know: `{"role": "user", "content": "…"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What clients of an API may ask for beside a conversation; a workflow seldom does."""

    top_p: float | None = None
    seed: int | None = None
    """Equal seeds get equal replies to equal conversations; None: the episode's own dice."""
    reading: Reading = field(default_factory=Reading)
    listen: Callable[[int, int], None] | None = None
    """Hears the number of the reply and each of its tokens as they are sampled, where the engine tells them."""
    alternatives: int = 0
    """How many of the likeliest tokens to tell at every place."""


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
        cache_key: str | None = None,
    ) -> None:
        """`sampling` is how tokens are drawn where a call does not say otherwise; `name` is the episode's.

        `cache_key` is what the engine knows it by, where several episodes of one name are under way.
        """
        self._engine = engine
        self._template = template
        self.sampling = sampling
        self._seed = seed
        self._name = name
        self._cache_key = cache_key or name
        self._loop = asyncio.get_running_loop()
        self._recorder = Recorder(template, max_tokens=max_tokens)
        self._num_requests = 0
        self._cancelled = ""
        self.step = 0
        """The step that new calls belong to."""

    @property
    def calls(self) -> list[Response]:
        return self._recorder.calls

    def chat(self, messages: Sequence[ChatMessage], **wishes: Any) -> list[Response]:
        """`chat_async` for programs that run in a thread of their own: it waits for the replies."""
        self._refuse_if_cancelled()
        if is_in_event_loop():
            raise WorkflowError(
                "model.chat was called in a coroutine, where it would wait for itself. Await chat_async."
            )
        return asyncio.run_coroutine_threadsafe(self.chat_async(messages, **wishes), self._loop).result()

    async def chat_async(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float | None = None,
        max_tokens: int | None = None,
        prefix: str = "",
        tools: Sequence[ToolSchema] = (),
        manner: ChatOptions = ChatOptions(),  # noqa: B008 - frozen
    ) -> list[Response]:
        """`n` replies to a conversation; `prefix` begins each reply and is never trained."""
        if n < 1:
            raise WorkflowError(f"n = {n} replies were asked for; expected at least 1.")
        sampling = self.sampling
        if temperature is not None or max_tokens is not None:
            sampling = replace(
                sampling,
                temperature=sampling.temperature if temperature is None else temperature,
                max_new_tokens=sampling.max_new_tokens if max_tokens is None else max_tokens,
            )
        if manner.top_p is not None:
            sampling = replace(sampling, top_p=manner.top_p)
        step = self.step
        prompt = self._recorder.prompt(
            _read_messages(messages), max_new_tokens=sampling.max_new_tokens, prefix=prefix, tools=tools
        )
        requests = [self._request(prompt, sampling, manner, number) for number in range(n)]
        with waiting(f"episode {self._name}", "the engine's reply", None):
            if n == 1:
                outcomes: Sequence[Completion | BaseException] = [await self._engine.generate(requests[0])]
            else:
                # Where one fails the others are waited for and written down: what was sampled is never lost.
                outcomes = await asyncio.gather(*map(self._engine.generate, requests), return_exceptions=True)
        self._refuse_if_cancelled()
        replies = [
            self._recorder.record(prompt, flag_mismatch(request, outcome), step=step, reading=manner.reading)
            for request, outcome in zip(requests, outcomes, strict=True)
            if isinstance(outcome, Completion)
        ]
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return replies

    def record_reply(self, messages: Sequence[ChatMessage], reply: str, *, prefix: str = "") -> Response:
        """Write down a reply that somebody else gave, as if the model had sampled it with certainty."""
        limit = self.sampling.max_new_tokens
        prompt = self._recorder.prompt(_read_messages(messages), max_new_tokens=limit, prefix=prefix)
        return self._recorder.record(prompt, completion_from_text(reply, self._template), step=self.step)

    def decode(self, token_ids: IntArray) -> str:
        """The text of sampled tokens, without the end of turn."""
        return self._template.decode_reply(token_ids)

    def tool_call_prefix(self, name: str = "") -> str:
        """How a reply begins that calls a tool: up to its name, or up to the arguments of the tool that is named."""
        return self._template.tool_call_prefix(name)

    @property
    def call_mark(self) -> str:
        """What stands before every call in a reply: a text without it calls nothing."""
        # A model may write one call or a list of them behind the same mark.
        return self._template.tool_call_prefix().partition("{")[0].strip().rstrip("[") or "{"

    def calls_of(self, step: int) -> list[Response]:
        return [call for call in self.calls if call.step == step]

    def cancel(self, reason: str) -> None:
        """Whatever still asks the model for this episode hears that it is over."""
        self._cancelled = reason

    def release(self) -> None:
        """The episode is over: what engines keep for it may go."""
        self._engine.release(self._cache_key)

    def _request(self, prompt: Prompt, sampling: Sampling, manner: ChatOptions, number: int) -> GenerateRequest:
        self._refuse_if_cancelled()
        self._num_requests += 1
        dice = (self._name, self._num_requests) if manner.seed is None else ("asked for", manner.seed, number)
        return GenerateRequest(
            prompt_ids=prompt.ids,
            sampling=sampling,
            seed=derive_seed(self._seed, *dice),
            cache_key=self._cache_key,
            asked=Asked(messages=prompt.messages, prefix=prompt.prefix, tools=prompt.tools),
            on_token=self._ear(manner, number),
            alternatives=manner.alternatives,
        )

    def _ear(self, manner: ChatOptions, number: int) -> Callable[[int], bool] | None:
        """Tells what was sampled as it comes, and whether it was enough."""
        listen, stop = manner.listen, manner.reading.stop
        if listen is None and not stop:
            return None
        finder = StopFinder(self._template.decode_reply, stop)

        def hear(token: int) -> bool:
            if listen is not None:
                listen(number, token)
            return finder.add(token)

        return hear

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise WorkflowError(f"the episode is over: {self._cancelled}")


def flag_mismatch(request: GenerateRequest, completion: Completion) -> Completion:
    """A reply to another request, or at another temperature, is marked so: whoever learns from it must know."""
    origin = completion.origin
    if origin is None or (origin.request == request.seed and origin.temperature == request.sampling.temperature):
        return completion
    return replace(completion, origin=replace(origin, is_as_asked=False))


def _read_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    if isinstance(messages, str | Mapping) or not messages:
        raise WorkflowError(f"messages are {messages!r}; expected a list such as [{{'role': 'user', 'content': '…'}}].")
    return [message if isinstance(message, Message) else read_message(message) for message in messages]


class TextDecoder:
    """The text of tokens as they come. Only a window of the newest ones is decoded at every token."""

    def __init__(self, decode: Callable[[IntArray], str], keep: int | None = _KEPT_CHARACTERS) -> None:
        """`keep` is how many of the last characters always stay in the window; None: all."""
        self._decode = decode
        self._keep = keep
        self._tokens: list[int] = []
        self._start = 0
        self._settled = ""
        self.window = ""
        """The text of the newest tokens."""

    @property
    def text(self) -> str:
        return self._settled + self.window

    def add(self, token: int) -> None:
        self._tokens.append(token)
        self.window = self._decode_from(self._start)
        if self._keep is not None and len(self._tokens) - self._start >= 2 * self._keep:
            self._move_on(self._keep)

    def decode_all(self) -> str:
        return self._decode_from(0)

    def _move_on(self, keep: int) -> None:
        """Begin the window later, unless its rest alone would read differently: where it begins inside a character, or
        in a run of bytes that is no text. Then the next token tries again, at another place."""
        num_tokens = len(self._tokens)
        start = (self._start + num_tokens) // 2
        if num_tokens % 2:
            # Of a long window the newest characters, of up to four bytes each; tokens without text need the half.
            start = max(start, num_tokens - 4 * keep)
        later = self._decode_from(start)
        if len(later) >= keep and not later.startswith(HALF_A_CHARACTER) and self.window.endswith(later):
            self._settled += self.window[: -len(later)]
            self._start, self.window = start, later

    def _decode_from(self, start: int) -> str:
        return self._decode(np.array(self._tokens[start:], dtype=np.int32))


class StopFinder:
    """Finds the token with which a reply holds one of several texts."""

    def __init__(self, decode: Callable[[IntArray], str], stop: Sequence[str]) -> None:
        # A text that is complete with a token reaches back by its own length, and by what was half a character before.
        # Half a character that is looked for itself may turn up, and go, anywhere in a run of bytes.
        has_halves = any(HALF_A_CHARACTER in word for word in stop)
        keep = max(_KEPT_CHARACTERS, max(map(len, stop), default=0) + 4)
        self._stop = stop
        self._decoder = TextDecoder(decode, None if has_halves else keep)

    def add(self, token: int) -> bool:
        if not self._stop:
            return False
        self._decoder.add(token)
        return self._is_in(self._decoder.window) and self._is_in(self._decoder.decode_all())

    def _is_in(self, text: str) -> bool:
        return any(word in text for word in self._stop)

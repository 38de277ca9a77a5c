"""Tokens as they are sampled become the pieces of a stream: text that is certain, and nothing twice.

In: one call, an episode that answers it, and a writer of the API's words. Out: server-sent events. A text is held back
while it could still turn out to be half a character, the beginning of a stop sequence or a call of a tool. It refuses
to know HTTP.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from turnwise.context.recorder import Response
from turnwise.errors import ServeError
from turnwise.infra.untrusted import tell_error
from turnwise.rollout.model_handle import HALF_A_CHARACTER, TextDecoder
from turnwise.serve.calls import ModelCall
from turnwise.serve.episode import Episode
from turnwise.types import IntArray


class StreamWriter(Protocol):
    """The words of one API for a reply that comes in pieces."""

    def begin(self) -> bytes: ...

    def delta(self, number: int, text: str) -> bytes:
        """More of what a choice says."""
        ...

    def end(self, responses: Sequence[Response]) -> bytes:
        """All that is known when the replies are whole, what they say aside."""
        ...

    def fail(self, error: ServeError) -> bytes: ...


class Stream:
    """The reply to one call, piece by piece."""

    def __init__(self, episode: Episode, call: ModelCall, step: int, writer: StreamWriter) -> None:
        self._episode = episode
        self._call = call
        self._writer = writer
        self._heard: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
        self._asking = asyncio.create_task(episode.ask(call, step, lambda *heard: self._heard.put_nowait(heard)))
        self._asking.add_done_callback(lambda _: self._heard.put_nowait(None))
        self._first: tuple[int, int] | None = None

    async def begin(self) -> None:
        """Wait for a first token, or for the refusal of the call, which is raised."""
        try:
            self._first = await self._heard.get()
        except asyncio.CancelledError:
            self._asking.cancel()
            raise
        if self._first is None:
            self._asking.result()

    def _open_texts(self) -> list[StreamedText]:
        """Once the call was not refused: a template without tools has no mark of a call."""
        call, model = self._call, self._episode.model
        marks = [*call.stop, *([model.call_mark] if call.takes_calls else [])]
        prefix = self._episode.begin_reply(call)
        return [
            StreamedText(model.decode, marks, prefix, told=call.prefill, takes_calls=call.takes_calls)
            for _ in range(call.n)
        ]

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            texts = self._open_texts()
            yield self._writer.begin()
            heard = self._first
            while heard is not None:
                number, token = heard
                if text := texts[number].add(token):
                    yield self._writer.delta(number, text)
                heard = await self._heard.get()
            try:
                responses = self._asking.result()
            except ServeError as error:
                yield self._writer.fail(error)
                return
            except Exception as error:  # noqa: BLE001 - the boundary: the status has been sent, the client still hears
                yield self._writer.fail(ServeError(tell_error(error), status=HTTPStatus.INTERNAL_SERVER_ERROR))
                return
            for number, response in enumerate(responses):
                if text := texts[number].rest(self._call.prefill + self._call.continuation(response.message.text)):
                    yield self._writer.delta(number, text)
            yield self._writer.end(responses)
        finally:
            self._asking.cancel()

    def forget(self) -> None:
        """The client has gone: what it did not get to the end is not recorded."""
        if self._asking.done() and not self._asking.cancelled() and self._asking.exception() is None:
            self._episode.forget(self._asking.result())
        self._asking.cancel()


class StreamedText:
    """What one choice has said so far."""

    def __init__(
        self,
        decode: Callable[[IntArray], str],
        marks: Sequence[str],
        prefix: str,
        *,
        told: str = "",
        takes_calls: bool = False,
    ) -> None:
        """`told` is the part of the prefix that the client has. With `takes_calls`, whitespace around the text is held
        back: it may belong to a call."""
        self._decoder = TextDecoder(decode)
        self._marks = marks
        self._prefix = prefix
        self._takes_calls = takes_calls
        self._told = told
        self._start = 0
        """What stands before it holds no mark, and not the beginning of one."""

    def add(self, token: int) -> str:
        """What is certain now and was not told yet."""
        self._decoder.add(token)
        text = self._prefix + self._decoder.text
        if text.endswith(HALF_A_CHARACTER) or (self._takes_calls and text[:1].isspace()):
            return ""
        certain = text[: min((_find_mark(text, mark, self._start) for mark in self._marks), default=len(text))]
        return self._tell(certain.rstrip() if self._takes_calls else certain)

    def rest(self, whole: str) -> str:
        return self._tell(whole)

    def _tell(self, text: str) -> str:
        if not text.startswith(self._told):
            return ""
        new, self._told, self._start = text[len(self._told) :], text, len(text)
        return new


def _find_mark(text: str, mark: str, start: int) -> int:
    """Where the mark stands behind `start`, or where it may be about to; the length of the text where neither is so."""
    place = text.find(mark, start)
    if place >= 0:
        return place
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return len(text) - length
    return len(text)


def event(content: object, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(content)}\n\n".encode()

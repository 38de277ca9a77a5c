"""An endpoint over model handles: an unmodified client talks, the handle records its tokens.

In: HTTP requests with a token. Out: replies in the words of OpenAI's chat completions and Responses APIs, and of
Anthropic's messages API. Every episode has a base URL of its own, so that a client needs nothing else to be told apart
from the others; each of its calls is a step. It refuses to know what an episode is for: a host keeps them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

from turnwise.errors import ServeError
from turnwise.serve.calls import ModelCall, read_object
from turnwise.serve.chat_api import ChatWriter, read_chat
from turnwise.serve.episode import Episode
from turnwise.serve.guarded import HttpLimits
from turnwise.serve.http import LOOPBACK, HttpReply, HttpRequest, HttpServer, json_reply
from turnwise.serve.messages_api import MessagesWriter, read_messages_call
from turnwise.serve.responses_api import ResponsesWriter, read_response_call
from turnwise.serve.streaming import Stream

_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
_PATH = re.compile(r"(?:/episodes/(?P<episode>[^/]+))?(?P<rest>/.*)")
_READERS: dict[str, Callable[[bytes], ModelCall]] = {
    "/v1/chat/completions": read_chat,
    "/v1/responses": read_response_call,
    "/v1/messages": read_messages_call,
}


class EpisodeHost(Protocol):
    """Who keeps the episodes of an endpoint."""

    def find(self, name: str | None) -> Episode:
        """A running episode; None: the one that calls without an episode belong to. Raises ServeError."""
        ...

    def begin(self, wishes: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode over HTTP; the answer has its `id`. Raises ServeError where that is not offered."""
        ...

    def end(self, name: str, outcome: dict[str, Any]) -> dict[str, Any]:
        """End an episode over HTTP with its reward. Raises ServeError."""
        ...


class ChatEndpoint:
    """Serves the episodes of a host from `start` to `close`, to programs of this machine unless told otherwise."""

    def __init__(
        self,
        host: EpisodeHost,
        *,
        token: str,
        model_name: str,
        limits: HttpLimits = HttpLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._host = host
        self._token = token
        self._model_name = model_name
        self._server = HttpServer(self._answer, limits)
        self.address = ""
        """`http://HOST:PORT`, once started."""

    async def start(self, port: int = 0, host: str = LOOPBACK) -> None:
        """`host` is the interface to listen on; one that is not loopback lets other machines in."""
        number = await self._server.start(port, host)
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{number}"

    async def close(self) -> None:
        await self._server.close()

    def base_url(self, episode: str | None = None, *, host: str = "") -> str:
        """What a client is given as its base URL; `host` is what it calls this machine, where that is known."""
        address = f"http://{host}" if _HOST.fullmatch(host) else self.address
        return f"{address}/v1" if episode is None else f"{address}/episodes/{episode}/v1"

    # --- one request ---------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpReply:
        if request.path == "/health":
            _expect(request, "GET")
            return json_reply({"status": "ok"})
        self._check_token(request)
        found = _PATH.fullmatch(request.path)
        episode, rest = (found["episode"], found["rest"]) if found else (None, "")
        match rest:
            case "/v1/chat/completions" | "/v1/responses" | "/v1/messages":
                _expect(request, "POST")
                return await self._ask(self._host.find(episode), rest, request)
            case "/v1/models":
                _expect(request, "GET")
                model = {"id": self._model_name, "object": "model", "created": 0, "owned_by": "turnwise"}
                return json_reply({"object": "list", "data": [model]})
            case "/v1/episodes" if episode is None:
                _expect(request, "POST")
                begun = self._host.begin(read_object(await request.read_body()))
                return json_reply(
                    {**begun, "base_url": self.base_url(begun["id"], host=request.headers.get("host", ""))}
                )
            case "/reward" if episode is not None:
                _expect(request, "POST")
                return json_reply(self._host.end(episode, read_object(await request.read_body())))
        raise ServeError(f"there is nothing at {request.path}.", status=HTTPStatus.NOT_FOUND, code="not_found")

    def _check_token(self, request: HttpRequest) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            # Where clients of Anthropic's API write it.
            given = request.headers.get("x-api-key", "")
        # Compared in constant time, so that the answer's delay tells nothing about the token.
        if not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise ServeError(
                "the token is missing or wrong. Send 'Authorization: Bearer TOKEN', or give it as api_key.",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
            )

    async def _ask(self, episode: Episode, path: str, request: HttpRequest) -> HttpReply:
        """One call of the model, in the words of the API that the path belongs to."""
        body = await request.read_body()
        try:
            call = _READERS[path](body)
            # Before anything is waited for: calls that come together must not be given the same id.
            step = episode.begin_step(call.agent)
            writer = self._open_writer(path, call, episode, step)
            if call.is_streamed:
                stream = Stream(episode, call, step, writer)
                await stream.begin()
                return HttpReply(pieces=stream.pieces(), content_type="text/event-stream", on_lost=stream.forget)
            responses = await episode.ask(call, step)
        except RecursionError as error:
            raise ServeError("the request is nested too deeply; expected a few hundred levels at most.") from error
        return json_reply(writer.whole(responses), on_lost=lambda: episode.forget(responses))

    def _open_writer(
        self, path: str, call: ModelCall, episode: Episode, step: int
    ) -> ChatWriter | ResponsesWriter | MessagesWriter:
        model, decode, name = self._model_name, episode.model.decode, episode.name_step(step)
        match path:
            case "/v1/responses":
                return ResponsesWriter(id=name, model=model, call=call, decode=decode)
            case "/v1/messages":
                return MessagesWriter(id=name, model=model, call=call, decode=decode)
        return ChatWriter(id=f"chatcmpl-{name}", model=model, call=call, decode=decode)


def _expect(request: HttpRequest, method: str) -> None:
    if request.method != method:
        raise ServeError(
            f"{request.method} {request.path} given; expected {method}.", status=HTTPStatus.METHOD_NOT_ALLOWED
        )

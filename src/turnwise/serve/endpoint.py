"""An OpenAI-compatible endpoint over model handles: an unmodified client talks, the handle records its tokens.

In: HTTP requests with a bearer token. Out: chat completions. Every episode has a base URL of its own, so that a client
needs nothing else to be told apart from the others; each of its calls is a step. It refuses to know what an episode is
for: a host keeps them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Protocol

from turnwise.context.recorder import Response
from turnwise.errors import ContextOverflow, EngineError, RewardError, ServeError, TurnwiseError
from turnwise.floor.outsiders import read_reward
from turnwise.rollout.model_handle import ModelHandle
from turnwise.serve.chat_api import ChatCall, ChatReply, read_chat, read_object
from turnwise.serve.http import HttpLimits, HttpReply, HttpRequest, HttpServer, json_reply
from turnwise.types import StopReason

_PATH = re.compile(r"(?:/episodes/(?P<episode>[^/]+))?(?P<rest>/.*)")


class Episode:
    """One episode's model: what it may be asked, and why it would not answer."""

    def __init__(
        self,
        name: str,
        model: ModelHandle,
        *,
        prefix: str,
        max_calls: int,
        max_response_tokens: int,
        keeps_temperature: bool,
    ) -> None:
        """`prefix` begins every reply; with `keeps_temperature` that of the model holds, whatever a client asks for."""
        self.name = name
        self.model = model
        self.refusal: TurnwiseError | None = None
        """Why the newest call was not answered; None where it was."""
        self.stop_reason = StopReason.TERMINATED
        """What ended the episode, if it ends now."""
        self._num_calls = 0
        self._prefix = prefix
        self._max_calls = max_calls
        self._max_response_tokens = max_response_tokens
        self._keeps_temperature = keeps_temperature

    @property
    def is_full(self) -> bool:
        """Whether it has had all its calls."""
        return self._num_calls >= self._max_calls

    async def ask(self, call: ChatCall) -> list[Response]:
        """The replies to one call, which is one step, recorded as such."""
        if self.is_full:
            raise self._refuse(
                StopReason.MAX_TURNS,
                ServeError(f"the episode has had its {self._max_calls} calls.", code="max_calls_exceeded"),
            )
        self.model.step = self._num_calls
        self._num_calls += 1
        max_tokens = min(call.max_tokens or self._max_response_tokens, self._max_response_tokens)
        temperature = None if self._keeps_temperature else call.temperature
        try:
            responses = await self.model.chat_async(
                call.messages, n=call.n, temperature=temperature, max_tokens=max_tokens, prefix=self._prefix
            )
        except ContextOverflow as overflow:
            told = ServeError(str(overflow), code="context_length_exceeded", param="messages")
            raise self._refuse(StopReason.CONTEXT_OVERFLOW, told) from overflow
        except EngineError as error:
            told = ServeError(str(error), status=HTTPStatus.INTERNAL_SERVER_ERROR)
            raise self._refuse(StopReason.ENGINE_ERROR, told) from error
        except TurnwiseError as error:
            raise ServeError(str(error)) from error
        self.refusal, self.stop_reason = None, StopReason.TERMINATED
        return responses

    def forget(self, responses: Sequence[Response]) -> None:
        """Nobody got these replies, so nobody acted on them."""
        lost = set(map(id, responses))
        self.model.calls[:] = [call for call in self.model.calls if id(call) not in lost]

    def read_reward(self, given: object) -> float | dict[int, float]:
        """One number for the whole episode, or a list with one for each call."""
        if not isinstance(given, Sequence) or isinstance(given, str):
            return _read_number(given)
        steps = sorted({call.step for call in self.model.calls})
        if len(given) != len(steps):
            raise RewardError(
                f"{len(given)} rewards given; expected one number, or one for each of {len(steps)} calls."
            )
        return dict(zip(steps, map(_read_number, given), strict=True))

    def _refuse(self, reason: StopReason, told: ServeError) -> ServeError:
        self.refusal, self.stop_reason = told, reason
        return told


def _read_number(given: object) -> float:
    return read_reward(given, "reward")


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
    """Serves the episodes of a host on the loopback interface, from `start` to `close`."""

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
        """`http://127.0.0.1:PORT`, once started."""

    async def start(self, port: int = 0) -> None:
        self.address = f"http://127.0.0.1:{await self._server.start(port)}"

    async def close(self) -> None:
        await self._server.close()

    def base_url(self, episode: str | None = None) -> str:
        """What a client is given as its base URL."""
        return f"{self.address}/v1" if episode is None else f"{self.address}/episodes/{episode}/v1"

    # --- one request ---------------------------------------------------------------------------------------------

    async def _answer(self, request: HttpRequest) -> HttpReply:
        if request.path == "/health":
            _expect(request, "GET")
            return json_reply({"status": "ok"})
        self._check_token(request)
        found = _PATH.fullmatch(request.path)
        episode, rest = (found["episode"], found["rest"]) if found else (None, "")
        match rest:
            case "/v1/chat/completions":
                _expect(request, "POST")
                return await self._chat(self._host.find(episode), request)
            case "/v1/models":
                _expect(request, "GET")
                model = {"id": self._model_name, "object": "model", "created": 0, "owned_by": "turnwise"}
                return json_reply({"object": "list", "data": [model]})
            case "/v1/episodes" if episode is None:
                _expect(request, "POST")
                begun = self._host.begin(read_object(request.body))
                return json_reply({**begun, "base_url": self.base_url(begun["id"])})
            case "/reward" if episode is not None:
                _expect(request, "POST")
                return json_reply(self._host.end(episode, read_object(request.body)))
        raise ServeError(f"there is nothing at {request.path}.", status=HTTPStatus.NOT_FOUND, code="not_found")

    def _check_token(self, request: HttpRequest) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time, so that the answer's delay tells nothing about the token.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise ServeError(
                "the token is missing or wrong. Send 'Authorization: Bearer TOKEN', or give it as api_key.",
                status=HTTPStatus.UNAUTHORIZED,
                code="invalid_api_key",
            )

    async def _chat(self, episode: Episode, request: HttpRequest) -> HttpReply:
        call = read_chat(request.body)
        responses = await episode.ask(call)
        reply = ChatReply(
            id=f"chatcmpl-{episode.name}-{responses[0].step}",
            model=self._model_name,
            call=call,
            responses=responses,
            decode=episode.model.decode,
        )

        def forget() -> None:
            episode.forget(responses)

        if call.is_streamed:
            return HttpReply(body=reply.to_events(), content_type="text/event-stream", on_lost=forget)
        return json_reply(reply.to_json(), on_lost=forget)


def _expect(request: HttpRequest, method: str) -> None:
    if request.method != method:
        raise ServeError(
            f"{request.method} {request.path} given; expected {method}.", status=HTTPStatus.METHOD_NOT_ALLOWED
        )

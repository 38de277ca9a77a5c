"""HTTP by uvicorn, in the event loop of whoever asks for it: requests come in, whole replies or pieces go out.

uvicorn reads and writes the protocol. Here is what it leaves open: deadlines for heads, bodies and replies, largest
sizes, whether a client is still there when its reply is, and an end that waits for nobody. It refuses to know what is
asked: one function answers all requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from turnwise.config.settings import require_package
from turnwise.errors import ServeError
from turnwise.infra.untrusted import format_error

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

_QUIET = logging.getLogger("turnwise.serve.uvicorn")
"""What a client does wrong is told to the client, and not to whoever watches the run."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may take."""

    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    idle_s: float = 75.0
    """From one request to the whole head of the next."""
    transfer_s: float = 30.0
    """For a body to arrive, and for a reply to be read."""


def error_content(error: ServeError) -> dict[str, Any]:
    """In the shape that clients of OpenAI's APIs read, and of Anthropic's."""
    told = {"message": str(error), "type": error.kind, "param": error.param, "code": error.code}
    # The outer type is where clients of Anthropic's API look.
    return {"type": "error", "error": told}


def header_too_large(limits: HttpLimits) -> ServeError:
    return ServeError(
        f"the head of the request is longer than {limits.max_head_bytes} bytes.",
        status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    )


@cache
def guarded_protocol(limits: HttpLimits, asked_by: str) -> Callable[..., Any]:
    """uvicorn's protocol class within these limits; made when it is needed, since uvicorn is an extra."""
    require_package("httptools", extra="serve", asked_by=asked_by)
    module: Any = require_package("uvicorn.protocols.http.httptools_impl", extra="serve", asked_by=asked_by)
    return type("GuardedProtocol", (_Guard, module.HttpToolsProtocol), {"limits": limits})


class _Guard(_Base):
    """Stands before uvicorn's class, which hears of everything after it."""

    limits: HttpLimits

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.logger = _QUIET
        self._is_in_head = True
        self._num_head_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._set_deadline(self.limits.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._num_head_bytes > self.limits.max_head_bytes and not self.transport.is_closing():
            self._refuse(header_too_large(self.limits))

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._clear_deadline()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Where the next head is here already, its deadline is over.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._set_deadline(self.limits.idle_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline(self.limits.transfer_s)

    def resume_writing(self) -> None:
        self._clear_deadline()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ServeError("no HTTP request given; expected one such as 'GET /v1/models HTTP/1.1'."))

    def _refuse(self, error: ServeError) -> None:
        body = json.dumps(error_content(error)).encode()
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        # Whoever does not read would otherwise be waited for even while the connection closes.
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


LOOPBACK = "127.0.0.1"
"""Only programs on this machine can connect."""
_LINGER_S = 1.0
"""How long a client that sends too much may go on, so that it gets to read why it was refused."""
_PIECE_BYTES = 64 * 1024
"""A larger reply is handed over in pieces, each when the one before has been taken."""
_BACKLOG = 1024

_Receive: TypeAlias = Callable[[], Awaitable[Any]]
_Send: TypeAlias = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """By lower-case name."""
    read_body: Callable[[], Awaitable[bytes]]
    """To be awaited at most once: whoever is refused for what stands in the head need not be listened to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    status: int = HTTPStatus.OK
    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None
    """A body that comes by and by, instead of a whole one."""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    on_disconnect: Callable[[], None] | None = None
    """Called where the client was gone before the reply could be handed to it."""


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpReply]]


def json_reply(content: object, *, on_disconnect: Callable[[], None] | None = None) -> HttpReply:
    return HttpReply(body=json.dumps(content, allow_nan=False).encode(), on_disconnect=on_disconnect)


def error_reply(error: ServeError) -> HttpReply:
    """In the shape that clients of OpenAI's API read. None is worth a retry: the same words get the same answer."""
    headers = {"x-should-retry": "false"}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return HttpReply(status=error.status, body=json.dumps(error_content(error)).encode(), headers=headers)


class HttpServer:
    """Listens from `start` to `close`. What `handle` raises beside ServeError is a 500.

    Consumes: connections. Produces: replies. Waits for: clients, each within a deadline of the limits.
    """

    def __init__(self, handle: Handler, limits: HttpLimits = HttpLimits(), *, asked_by: str = "serving") -> None:  # noqa: B008 - frozen
        """`asked_by` is what needs uvicorn, should it be missing."""
        self._uvicorn: Any = require_package("uvicorn", extra="serve", asked_by=asked_by)
        self._protocol = guarded_protocol(limits, asked_by)
        self._handle = handle
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._state: Any = self._uvicorn.server.ServerState()
        self._is_closing = False

    async def start(self, port: int = 0, host: str = LOOPBACK) -> int:
        """Returns the port, a free one for 0."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except (OSError, OverflowError) as error:
            raise ServeError(
                f"cannot listen on {host}:{port}: {error}. Choose another --port, or none for a free one, and a --host "
                "of this machine.",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            ) from error
        config = self._uvicorn.Config(
            self._answer,
            http=self._protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=self._limits.idle_s,
        )
        config.load()
        loop = asyncio.get_running_loop()
        # Not uvicorn's own `serve`: it takes the signals of the process, and wakes up ten times a second.
        self._server = await loop.create_server(
            lambda: self._protocol(config=config, server_state=self._state, app_state={}),
            sock=listener,
            backlog=_BACKLOG,
        )
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Whoever waits for a reply is told that there is none."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        answering = list(self._state.tasks)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.transport.close()

    # --- one request ---------------------------------------------------------------------------------------------

    async def _answer(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        given = scope["headers"]
        body = _Body(given, receive, self._limits)
        request = HttpRequest(
            method=scope["method"],
            path=scope["path"],
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in given},
            read_body=body.read,
        )
        try:
            # A long head that comes in one piece is whole before anybody could count it.
            if sum(len(name) + len(value) for name, value in given) > self._limits.max_head_bytes:
                raise header_too_large(self._limits)
            reply = await self._handle(request)
        except ServeError as error:
            reply = error_reply(error)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            reply = error_reply(ServeError("the server is ending.", status=HTTPStatus.SERVICE_UNAVAILABLE))
        except Exception as error:  # noqa: BLE001 - the boundary: a client must hear of it, and others go on
            told = ServeError(format_error(error), status=HTTPStatus.INTERNAL_SERVER_ERROR)
            reply = error_reply(told)
        # Where the next request would begin is not known before all of this one is read.
        is_kept = body.is_read and reply.status != HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        is_whole = await _hand_over(reply, receive, send, is_kept=is_kept)
        if not is_whole and reply.on_disconnect is not None:
            reply.on_disconnect()


class _Body:
    """The body of one request, read when it is asked for."""

    def __init__(self, headers: list[tuple[bytes, bytes]], receive: _Receive, limits: HttpLimits) -> None:
        self._receive = receive
        self._limits = limits
        lengths = [value for name, value in headers if name == b"content-length"]
        self._length = int(lengths[0]) if lengths else None
        is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
        self.is_read = not self._length and not is_chunked

    async def read(self) -> bytes:
        limit = self._limits.max_body_bytes
        if self._length is not None and self._length > limit:
            await self._linger()
            raise ServeError(
                f"a body of {self._length} bytes given; expected at most {limit}.",
                status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        try:
            async with asyncio.timeout(self._limits.transfer_s):
                return await self._read_within(limit)
        except TimeoutError as error:
            raise ServeError(
                f"the body did not arrive within {self._limits.transfer_s:g} s.", status=HTTPStatus.REQUEST_TIMEOUT
            ) from error

    async def _read_within(self, limit: int) -> bytes:
        pieces, length = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ServeError("the client left.")
            pieces.append(message["body"])
            length += len(message["body"])
            if length > limit:
                raise ServeError(
                    f"a body of more than {limit} bytes given; expected at most that.",
                    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
            if not message["more_body"]:
                self.is_read = True
                return b"".join(pieces)

    async def _linger(self) -> None:
        """Read on for a moment: closing with unread bytes would take the reply away from the client."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message["more_body"]:
                        break


async def _hand_over(reply: HttpReply, receive: _Receive, send: _Send, *, is_kept: bool) -> bool:
    """Write a reply; says whether its client was there to the end."""
    headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    headers.append((b"content-type", reply.content_type.encode()))
    if reply.pieces is None:
        headers.append((b"content-length", str(len(reply.body)).encode()))
    if not is_kept:
        headers.append((b"connection", b"close"))
    if _is_gone(receive):
        return False
    await send({"type": "http.response.start", "status": int(reply.status), "headers": headers})
    if reply.pieces is not None:
        return await _hand_over_pieces(reply.pieces, receive, send)
    for start in range(_PIECE_BYTES, len(reply.body), _PIECE_BYTES):
        piece = reply.body[start - _PIECE_BYTES : start]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    last = (max(len(reply.body), 1) - 1) // _PIECE_BYTES * _PIECE_BYTES
    if last and _is_gone(receive):
        return False
    await send({"type": "http.response.body", "body": reply.body[last:], "more_body": False})
    return True


async def _hand_over_pieces(pieces: AsyncIterator[bytes], receive: _Receive, send: _Send) -> bool:
    async for piece in pieces:
        if _is_gone(receive):
            return False
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if _is_gone(receive):
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


def _is_gone(receive: _Receive) -> bool:
    """Whether the client has left: then there is something to receive, and otherwise one would have to wait.

    The coroutine is begun and let go by hand, since a task for the question would cost as much as the reply.
    """
    asking: Any = receive()
    try:
        asking.send(None)
    except StopIteration as answered:
        return answered.value["type"] == "http.disconnect"
    asking.close()
    return False

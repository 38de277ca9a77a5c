"""HTTP/1.1 over asyncio, as much of it as API clients use: requests with a length come in, whole replies go out.

Connections are kept alive; every read and write has a deadline, heads and bodies have a largest size. It refuses to
know what is asked: one function answers all requests.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

from turnwise.errors import ServeError

_LOOPBACK = "127.0.0.1"
"""Only programs on this machine can connect."""
_LINGER_S = 1.0
"""How long a client that was refused may go on sending, so that it gets to read why."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What a client may take."""

    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    idle_s: float = 75.0
    """From one request to the whole head of the next."""
    transfer_s: float = 30.0
    """For a body to arrive, and for a reply to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    status: int = HTTPStatus.OK
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    on_lost: Callable[[], None] | None = None
    """Called where the client was gone before the reply could be handed to it."""


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpReply]]


def json_reply(content: object, *, on_lost: Callable[[], None] | None = None) -> HttpReply:
    return HttpReply(body=json.dumps(content, allow_nan=False).encode(), on_lost=on_lost)


def error_reply(error: ServeError) -> HttpReply:
    """In the shape that clients of OpenAI's API read. None is worth a retry: the same words get the same answer."""
    kind = "server_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    content = {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}
    headers = {"x-should-retry": "false"}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpReply(status=error.status, body=json.dumps(content).encode(), headers=headers)


class HttpServer:
    """Listens on the loopback interface from `start` to `close`. What `handle` raises beside ServeError is a 500."""

    def __init__(self, handle: Handler, limits: HttpLimits = HttpLimits()) -> None:  # noqa: B008 - frozen
        self._handle = handle
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> int:
        """Returns the port, a free one for 0."""
        try:
            self._server = await asyncio.start_server(
                self._serve, _LOOPBACK, port, limit=self._limits.max_head_bytes, backlog=1024
            )
        except (OSError, OverflowError) as error:
            raise ServeError(
                f"cannot listen on {_LOOPBACK}:{port}: {error}. Choose another --port, or none for a free one.",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # --- one connection ------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        # A client that goes away, or does not finish in time, leaves nothing to be told.
        with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            while await self._serve_one(reader, writer):
                pass
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; says whether the connection goes on."""
        try:
            request, is_kept = await self._read(reader, writer)
        except ServeError as error:
            # Where the next request begins is not known any more.
            await self._write(writer, error_reply(error), is_kept=False)
            await _linger(reader, writer)
            return False
        reply = await self._answer(request)
        try:
            if reader.at_eof():
                raise ConnectionResetError
            await self._write(writer, reply, is_kept=is_kept)
        except (ConnectionError, TimeoutError):
            if reply.on_lost is not None:
                reply.on_lost()
            raise
        return is_kept

    async def _answer(self, request: HttpRequest) -> HttpReply:
        try:
            return await self._handle(request)
        except ServeError as error:
            return error_reply(error)
        except Exception as error:  # noqa: BLE001 - the boundary: a client must hear of it, and others go on
            return error_reply(ServeError(f"{type(error).__name__}: {error}", status=HTTPStatus.INTERNAL_SERVER_ERROR))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[HttpRequest, bool]:
        try:
            async with asyncio.timeout(self._limits.idle_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise ServeError(
                f"the head of the request is longer than {self._limits.max_head_bytes} bytes.",
                status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            ) from error
        method, path, version, headers = _parse_head(head.decode("latin-1"))
        length = self._body_length(headers)
        if length and headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limits.transfer_s):
                body = await reader.readexactly(length)
        except TimeoutError as error:
            raise ServeError(
                f"the {length} bytes of the body did not arrive within {self._limits.transfer_s:g} s.",
                status=HTTPStatus.REQUEST_TIMEOUT,
            ) from error
        is_kept = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        return HttpRequest(method=method, path=path, headers=headers, body=body), is_kept

    def _body_length(self, headers: Mapping[str, str]) -> int:
        if "transfer-encoding" in headers:
            raise ServeError("send the body with a Content-Length, not in chunks.", status=HTTPStatus.LENGTH_REQUIRED)
        given = headers.get("content-length", "0")
        if not (given.isascii() and given.isdigit() and len(given) < 16):
            raise ServeError(f"Content-Length: {given[:40]!r} given; expected a number of bytes.")
        if int(given) > self._limits.max_body_bytes:
            raise ServeError(
                f"a body of {given} bytes given; expected at most {self._limits.max_body_bytes}.",
                status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        return int(given)

    async def _write(self, writer: asyncio.StreamWriter, reply: HttpReply, *, is_kept: bool) -> None:
        lines = [
            f"HTTP/1.1 {int(reply.status)} {HTTPStatus(reply.status).phrase}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
            f"Connection: {'keep-alive' if is_kept else 'close'}",
            *(f"{name}: {value}" for name, value in reply.headers.items()),
        ]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + reply.body)
        async with asyncio.timeout(self._limits.transfer_s):
            await writer.drain()


def _parse_head(head: str) -> tuple[str, str, str, dict[str, str]]:
    """Method, path, version and headers."""
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise ServeError(f"{first[:80]!r} given; expected a request such as 'GET /v1/models HTTP/1.1'.")
    method, target, version = words
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise ServeError(f"header {line[:80]!r} given; expected 'Name: value'.")
        # Two lengths would leave open where a body ends; of other headers that come twice the last counts.
        if name.lower() == "content-length" and headers.get("content-length", value.strip()) != value.strip():
            raise ServeError("two different Content-Length headers given; expected one.")
        headers[name.lower()] = value.strip()
    return method, target.partition("?")[0], version, headers


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read on for a moment: closing with unread bytes would take the reply away from the client."""
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(65536):
                pass

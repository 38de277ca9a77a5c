"""The HTTP server against raw bytes: what well-behaved clients rely on, and what others cannot break."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.errors import ServeError
from turnwise.serve.http import HttpLimits, HttpReply, HttpRequest, HttpServer

from ...clock import HANG_S, run_hastily

SMALL = HttpLimits(max_head_bytes=1024, max_body_bytes=100)
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"

Handler = Callable[[HttpRequest], Awaitable[HttpReply]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def echo(request: HttpRequest) -> HttpReply:
    body = await request.read_body()
    return HttpReply(body=f"{request.method} {request.path} {body.decode()}".encode())


def talk_to(talk: Talk, handler: Handler = echo, limits: HttpLimits = SMALL) -> bytes:
    """What a client hears; the server must still answer another one afterwards."""

    async def run() -> bytes:
        server = HttpServer(handler, limits)
        port = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        heard = await asyncio.wait_for(talk(reader, writer), HANG_S)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /still-there HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")
        writer.close()
        await server.close()
        return heard

    return run_hastily(run())


def send(*pieces: bytes, handler: Handler = echo) -> bytes:
    """Everything the server says to these bytes until it closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()

    return talk_to(talk, handler)


def test_a_connection_serves_several_requests_and_an_idle_one_is_closed() -> None:
    post = b"POST /p HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
    heard = send(GET + post)
    assert heard.count(b"HTTP/1.1 200 OK") == 2
    assert b"connection: close" not in heard
    assert heard.index(b"GET /a ") < heard.index(b"POST /p hi")


@pytest.mark.parametrize(
    "request_bytes", [b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"], ids=["asked", "1.0"]
)
def test_a_connection_is_closed_after_the_reply_where_the_client_wants_that(request_bytes: bytes) -> None:
    heard = send(request_bytes + GET)
    assert heard.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in heard


@pytest.mark.parametrize(
    ("request_bytes", "status", "why"),
    [
        (b"nonsense\r\n\r\n", 400, b"no HTTP request"),
        (b"GET / HTTP/3\r\n\r\n", 400, b"no HTTP request"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, b"no HTTP request"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, b"no HTTP request"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, b"no HTTP request"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, b"no HTTP request"),
        (CHUNKED + b"78\r\n" + b"x" * 120 + b"\r\n0\r\n\r\n", 413, b"more than 100 bytes"),
        (b"POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000, 413, b"expected at most 100"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nslow", 408, b"did not arrive"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 3000 + b"\r\n\r\n", 431, b"longer than 1024 bytes"),
    ],
)
def test_a_request_that_cannot_be_read_is_told_why_and_the_connection_ends(
    request_bytes: bytes, status: int, why: bytes
) -> None:
    heard = send(request_bytes)
    assert heard.startswith(f"HTTP/1.1 {status} ".encode())
    assert why in heard
    assert b'"error": {"message": ' in heard
    assert b"connection: close" in heard


def test_a_head_that_never_ends_is_given_up() -> None:
    assert send(b"GET / HTTP/1.1\r\nHost: x\r\n") == b""


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        return await reader.readuntil(b"ok")

    assert b"200 OK" in talk_to(talk)


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (ServeError("no", status=404, param="p", code="c"), 404, b'"type": "invalid_request_error", "param": "p"'),
        (KeyError("oops"), 500, b'"type": "server_error"'),
    ],
)
def test_what_a_handler_raises_is_told_and_the_connection_goes_on(raised: Exception, status: int, kind: bytes) -> None:
    async def fail(_request: HttpRequest) -> HttpReply:
        raise raised

    heard = send(GET + GET, handler=fail)
    assert heard.count(f"HTTP/1.1 {status} ".encode()) == 2
    assert kind in heard
    assert b"x-should-retry: false" in heard


def test_a_reply_that_its_client_did_not_wait_for_is_reported_as_lost() -> None:
    events: list[str] = []
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(request: HttpRequest) -> HttpReply:
        await request.read_body()
        if request.path == "/still-there":
            return HttpReply(body=b"")
        is_asked.set()
        await may_answer.wait()
        return HttpReply(body=b"late", on_disconnect=lambda: events.append("lost"))

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET)
        await is_asked.wait()
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(1)
        may_answer.set()
        await asyncio.sleep(1)
        return b""

    talk_to(talk, slow)
    assert events == ["lost"]


def test_two_servers_cannot_have_one_port() -> None:
    async def run() -> None:
        first = HttpServer(echo)
        port = await first.start()
        with pytest.raises(ServeError, match=r"Choose another --port"):
            await HttpServer(echo).start(port)
        await first.close()

    asyncio.run(run())


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_stop_the_server(noise: bytes, is_ended: bool) -> None:
    # `talk_to` asks again over a new connection: whatever came before, that one is answered.
    heard = send(noise + (b"\r\n\r\n" if is_ended else b""))
    assert heard == b"" or heard.startswith(b"HTTP/1.1 ")


def test_a_body_may_come_in_chunks() -> None:
    assert b"POST / hi" in send(CHUNKED + b"2\r\nhi\r\n0\r\n\r\n")


def test_whoever_is_refused_for_the_head_is_not_listened_to() -> None:
    async def refuse(_request: HttpRequest) -> HttpReply:
        raise ServeError("no token.", status=401)

    # Far more than may ever come: were it read, this would not end.
    heard = send(b"POST / HTTP/1.1\r\nContent-Length: 99\r\n\r\nsome", handler=refuse)
    assert heard.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in heard


def test_pieces_are_handed_over_as_they_come() -> None:
    may_go_on = asyncio.Event()

    async def speak() -> AsyncIterator[bytes]:
        yield b"first"
        await may_go_on.wait()
        yield b"second"

    async def stream(request: HttpRequest) -> HttpReply:
        await request.read_body()
        return HttpReply(pieces=speak()) if request.path == "/a" else HttpReply()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET)
        await reader.readuntil(b"first")
        may_go_on.set()
        return await reader.readuntil(b"0\r\n\r\n")

    assert b"second" in talk_to(talk, stream)


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "pieces"])
def test_a_reply_that_nobody_reads_is_given_up_and_reported_as_lost(is_whole: bool) -> None:
    events: list[str] = []
    much = b"x" * 20_000_000

    async def speak() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield much[:1_000_000]

    async def tell(request: HttpRequest) -> HttpReply:
        await request.read_body()
        if request.path == "/still-there":
            return HttpReply()
        return HttpReply(body=much if is_whole else b"", pieces=None if is_whole else speak(), on_disconnect=note)

    def note() -> None:
        events.append("lost")

    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET)
        await asyncio.sleep(SMALL.transfer_s + 1)
        return b""

    talk_to(talk, tell)
    assert events == ["lost"]


def test_whoever_waits_when_the_server_ends_is_told() -> None:
    is_asked = asyncio.Event()

    async def never(_request: HttpRequest) -> HttpReply:
        is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> bytes:
        server = HttpServer(never)
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        writer.write(GET)
        await is_asked.wait()
        await server.close()
        heard = await reader.read()
        writer.close()
        return heard

    heard = asyncio.run(asyncio.wait_for(run(), HANG_S))
    assert heard.startswith(b"HTTP/1.1 503 ")
    assert b"the server is ending" in heard

"""The HTTP server against raw bytes: what well-behaved clients rely on, and what others cannot break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.errors import ServeError
from turnwise.serve.http import HttpLimits, HttpReply, HttpRequest, HttpServer

from ...clock import HANG_S, run_hastily

SMALL = HttpLimits(max_head_bytes=1024, max_body_bytes=100)
GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"

Handler = Callable[[HttpRequest], Awaitable[HttpReply]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def echo(request: HttpRequest) -> HttpReply:
    return HttpReply(body=f"{request.method} {request.path} {request.body.decode()}".encode())


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
    assert heard.count(b"Connection: keep-alive") == 2
    assert heard.index(b"GET /a ") < heard.index(b"POST /p hi")


@pytest.mark.parametrize(
    "request_bytes", [b"GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"], ids=["asked", "1.0"]
)
def test_a_connection_is_closed_after_the_reply_where_the_client_wants_that(request_bytes: bytes) -> None:
    heard = send(request_bytes + GET)
    assert heard.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in heard


@pytest.mark.parametrize(
    ("request_bytes", "status", "why"),
    [
        (b"nonsense\r\n\r\n", 400, b"expected a request such as"),
        (b"GET / HTTP/2\r\n\r\n", 400, b"expected a request such as"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, b"expected 'Name: value'"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, b"expected 'Name: value'"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, b"expected a number of bytes"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, b"two different"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411, b"Content-Length"),
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
    assert b'{"error": {"message": ' in heard
    assert b"Connection: close" in heard


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
        if request.path == "/still-there":
            return HttpReply(body=b"")
        is_asked.set()
        await may_answer.wait()
        return HttpReply(body=b"late", on_lost=lambda: events.append("lost"))

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

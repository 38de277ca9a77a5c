"""Whatever comes in over HTTP: a request that is understood, or an error that says why not."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import ServeError
from turnwise.serve.http import LOOPBACK, HttpLimits, HttpReply, HttpRequest, HttpServer, json_reply
from turnwise.serve.openai_chat_api import read_chat

from .damage import FRAGMENTS, damaged, plain_values, texts

BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "n": 2,
        "temperature": 0.5,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
).encode()
REQUEST = (
    b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n"
    b"Content-Type: application/json\r\nContent-Length: 11\r\nConnection: keep-alive\r\n\r\n{\"a\": null}"
)  # fmt: skip


@given(damaged(BODY) | st.binary(max_size=60) | st.lists(st.sampled_from(FRAGMENTS)).map(b"".join))
def test_any_body_is_a_call_or_refused(body: bytes) -> None:
    with suppress(ServeError):
        read_chat(body)


@given(
    st.dictionaries(st.sampled_from(["messages", "n", "stream", "tools", "stop", "max_tokens"]) | texts, plain_values)
)
def test_any_object_is_a_call_or_refused(body: dict[str, object]) -> None:
    with suppress(ServeError, UnicodeEncodeError):
        read_chat(json.dumps(body).encode())


@given(damaged(REQUEST) | damaged(REQUEST * 2) | st.binary(max_size=80))
def test_any_bytes_on_a_connection_are_answered_or_end_it(data: bytes) -> None:
    async def answer(request: HttpRequest) -> HttpReply:
        body = await request.read_body()
        return json_reply({"path": request.path.encode("ascii", "replace").decode(), "bytes": len(body)})

    async def talk() -> bytes:
        server = HttpServer(answer, HttpLimits(max_head_bytes=2048, max_body_bytes=4096, idle_s=5, transfer_s=5))
        port = await server.start()
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(data)
            writer.write_eof()
            written = await reader.read()
            writer.close()
            return written
        finally:
            await server.close()

    written = asyncio.run(talk())
    assert b" 500 " not in written
    assert not written or written.startswith(b"HTTP/1.1 ")

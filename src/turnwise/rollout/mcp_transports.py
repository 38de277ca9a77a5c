"""How bytes come from MCP servers, none of whom is trusted: messages are bounded, and programs end with their episode.

In: a command or an address. Out: the pair of streams that the package `mcp` speaks over. Its own reader of programs
holds a line of any length in memory, and its HTTP client a body of any length; these do not.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from turnwise.config.settings import require_package

ASKED_BY = "rollout.workflow 'mcp_tools'"
MAX_MESSAGE_BYTES = 1 << 20
"""Of one message of a server; who writes more is cut off."""
MAX_SESSION_BYTES = 1 << 26
"""Of all that a server writes in an episode, notifications that nobody asked for included."""
_TERMINATE_S = 1.0
"""How long a program may take to end by itself."""


def require_mcp(module: str = "mcp") -> Any:
    return require_package(module, extra="mcp", asked_by=ASKED_BY)


@asynccontextmanager
async def open_program(command: Sequence[str], last_words: deque[str]) -> AsyncIterator[tuple[Any, Any]]:
    """A server that is a program: it has a process group of its own, which ends with it.

    It gets the few variables of the environment that the package calls safe, so no keys or tokens of ours. The end of
    what it writes to stderr is kept in `last_words`.
    """
    anyio, safe = require_mcp("anyio"), require_mcp("mcp.client.stdio").get_default_environment()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=safe,
        limit=MAX_MESSAGE_BYTES,
        start_new_session=True,
    )
    incoming, read = anyio.create_memory_object_stream(0)
    write, outgoing = anyio.create_memory_object_stream(0)
    pumps = [
        asyncio.ensure_future(_receive(process.stdout, incoming, last_words)),
        asyncio.ensure_future(_send(outgoing, process.stdin, incoming)),
        asyncio.ensure_future(_listen(process.stderr, last_words)),
    ]
    try:
        yield read, write
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for stream in (incoming, read, write, outgoing):
            stream.close()
        await _end(process)


async def _receive(stdout: Any, incoming: Any, last_words: deque[str]) -> None:
    """Lines become messages until the program ends, or writes more than it may."""
    message_of, adapter = (
        require_mcp("mcp.shared.message").SessionMessage,
        require_mcp("mcp_types").jsonrpc_message_adapter,
    )
    num_bytes = 0
    async with incoming:
        while line := await _read_line(stdout, last_words):
            num_bytes += len(line)
            if num_bytes > MAX_SESSION_BYTES:
                last_words.append(f"it wrote more than {MAX_SESSION_BYTES} bytes in one episode")
                return
            try:
                await incoming.send(message_of(adapter.validate_json(line, by_name=False)))
            except ValueError:
                continue  # what is no message answers no request: whoever waits for one has a deadline


async def _read_line(stdout: Any, last_words: deque[str]) -> bytes:
    try:
        return await stdout.readline()
    except ValueError:
        last_words.append(f"it wrote a message of more than {MAX_MESSAGE_BYTES} bytes")
        return b""


async def _send(outgoing: Any, stdin: Any, incoming: Any) -> None:
    try:
        async for item in outgoing:
            stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await stdin.drain()
    except OSError:
        incoming.close()


async def _listen(stderr: Any, last_words: deque[str]) -> None:
    while text := await stderr.read(4096):
        last_words.extend(text.decode(errors="replace").splitlines())


async def _end(process: asyncio.subprocess.Process) -> None:
    """The program and whatever it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERMINATE_S):
                await process.wait()


@asynccontextmanager
async def open_address(url: str, timeout_s: float) -> AsyncIterator[tuple[Any, Any]]:
    """A server behind an address, with replies of at most `MAX_MESSAGE_BYTES`."""
    httpx, transport = require_mcp("httpx2"), require_mcp("mcp.client.streamable_http")

    class BoundedStream(httpx.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            num_bytes = 0
            async for chunk in self._stream:
                num_bytes += len(chunk)
                if num_bytes > MAX_MESSAGE_BYTES:
                    raise httpx.ReadError(f"a reply of more than {MAX_MESSAGE_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def bound(response: Any) -> None:
        response.stream = BoundedStream(response.stream)

    async with (
        httpx.AsyncClient(timeout=timeout_s, event_hooks={"response": [bound]}) as client,
        transport.streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams[0], streams[1]

"""A real MCP server, written with the official package: `python -m tests.mcp.house` speaks over stdin and stdout."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from mcp.server.mcpserver import MCPServer

house = MCPServer("house")
_state = {"looks": 0}


@house.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@house.tool()
def look() -> str:
    """How often this house was looked at."""
    _state["looks"] += 1
    return f"look number {_state['looks']}"


@house.tool()
def explode() -> str:
    """Raises."""
    raise RuntimeError("boom")


@house.tool()
def sleep(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "awake"


@house.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@house.tool()
def chatter(length: int) -> str:
    """Says much."""
    return "x" * length


@contextmanager
def serve() -> Iterator[str]:
    """The address of the same house over HTTP, at a port that the system chose."""
    import uvicorn  # noqa: PLC0415 - the program does without, and starts sooner

    config = uvicorn.Config(house.streamable_http_app(), port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


@cache
def shared_address() -> str:
    """One house over HTTP for all tests of a process, until it ends."""
    server = serve()
    atexit.register(server.__exit__, None, None, None)
    return server.__enter__()


if __name__ == "__main__":
    house.run(transport="stdio")

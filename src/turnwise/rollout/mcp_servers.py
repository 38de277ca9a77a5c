"""The tools of MCP servers for one episode: a session with each, what they offer, and calls with a deadline.

In: commands and addresses. Out: tool schemas, and results as text. Nothing that a server says is trusted: names,
descriptions, schemas and results are bounded, a tool that does not fit is left out, and a server that cannot be
reached, or is gone, is an EnvError that costs the episode. Each session lives in a task of its own, so that a fault
inside the package never ends the episode's task from within.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
from collections import deque
from typing import Any

from pydantic import ValidationError

from turnwise.errors import EnvError
from turnwise.infra.untrusted import tell_error
from turnwise.rollout.mcp_transports import open_address, open_program, require_mcp
from turnwise.types import ToolSchema

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_TOOLS, _MAX_PAGES = 64, 8
_MAX_DESCRIPTION, _MAX_SCHEMA, _MAX_DEPTH = 1000, 4000, 16
_CLOSE_S = 5.0
_HTTP_READ_S = 300.0
"""A stream over HTTP may be silent for long; calls have deadlines of their own."""


class McpServer:
    """One session: `open`, `call`, `close`. `label` is how failures name it."""

    def __init__(self, target: str, *, open_timeout_s: float) -> None:
        self.label = target
        self.schemas: tuple[ToolSchema, ...] = ()
        self._open_timeout_s = open_timeout_s
        self._client: Any = None
        self._ended = asyncio.Event()
        self._last_words: deque[str] = deque(maxlen=3)
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.ensure_future(self._keep(opened))
        try:
            async with asyncio.timeout(self._open_timeout_s):
                await opened
        except TimeoutError:
            self._keeper.cancel()
            raise self._lost(f"did not say what tools it has within {self._open_timeout_s:g} s") from None

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float) -> str:
        """What a tool returned, or what it says went wrong; TimeoutError where it takes too long."""
        if self._keeper is None or self._keeper.done():
            raise self._lost("is gone")
        mcp = require_mcp()
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._client.call_tool(name, arguments)
        except mcp.MCPError as error:
            # A server that is gone closes the session; what it refuses is for the model to read.
            if error.code == require_mcp("mcp_types").CONNECTION_CLOSED:
                raise self._lost(f"is gone: {error}") from error
            return f"error: {error}"
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: a server may answer whatever it likes
            return f"error: {tell_error(error)}"
        text = _read_result(result)
        return f"error: {text}" if result.is_error else text

    async def close(self) -> None:
        """The program ends, the connection closes; nobody waits for one that does not."""
        self._ended.set()
        if self._keeper is not None and (await asyncio.wait([self._keeper], timeout=_CLOSE_S))[1]:
            self._keeper.cancel()
            await asyncio.wait([self._keeper], timeout=_CLOSE_S)

    async def _keep(self, opened: asyncio.Future[None]) -> None:
        """From the first word to the last; whoever waits for `opened` hears what went wrong."""
        try:
            async with require_mcp().Client(self._transport(), cache=None) as self._client:
                self.schemas = await self._list_tools()
                if not opened.done():
                    opened.set_result(None)
                await self._ended.wait()
        except Exception as error:  # noqa: BLE001 - the boundary: it is told to whoever waits
            if not opened.done():
                opened.set_exception(self._lost(f"cannot be reached: {_innermost(error)}"))

    def _transport(self) -> Any:
        if self.label.startswith(("http://", "https://")):
            return open_address(self.label, _HTTP_READ_S)
        return open_program(shlex.split(self.label), self._last_words)

    async def _list_tools(self) -> tuple[ToolSchema, ...]:
        found: dict[str, ToolSchema] = {}
        cursor = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools:
                schema = _read_tool(tool)
                if isinstance(schema, str) or len(found) >= _MAX_TOOLS:
                    why = schema if isinstance(schema, str) else f"more than {_MAX_TOOLS} tools"
                    log.warning("MCP server '%s': tool %.80r is left out: %s", self.label, tool.name, why)
                else:
                    found.setdefault(schema.name, schema)
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(found.values())

    def _lost(self, what: str) -> EnvError:
        last = f" Its last words: {' / '.join(self._last_words)[-500:]}" if self._last_words else ""
        return EnvError(f"MCP server '{self.label}' {what}.{last}")


def _read_tool(tool: Any) -> ToolSchema | str:
    """A tool as chat templates know it, or why it is none."""
    if not _NAME.fullmatch(tool.name):
        return "its name is not made of 1 to 64 letters, digits, _ and -"
    schema = tool.input_schema
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "its input schema is not that of an object"
    if _is_deeper(schema, _MAX_DEPTH):
        return f"its input schema is nested more than {_MAX_DEPTH} levels deep"
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError as error:
        return f"its input schema is no JSON: {error}"
    if len(text) > _MAX_SCHEMA:
        return f"its input schema has more than {_MAX_SCHEMA} characters"
    return ToolSchema(tool.name, (tool.description or "")[:_MAX_DESCRIPTION], text)


def _is_deeper(value: object, depth: int) -> bool:
    """Level by level and never by recursion: the depth is the server's choice."""
    level: list[object] = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # type: ignore[union-attr]
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _read_result(result: Any) -> str:
    parts = [getattr(part, "text", None) or f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, default=str)]
    return "\n".join(parts)


def _innermost(error: BaseException) -> str:
    """What was raised, without the groups that task groups put around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"it answers what no server may answer ({'.'.join(map(str, first['loc']))}: {first['msg']})"
    return tell_error(error)

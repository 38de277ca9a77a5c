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
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from turnwise.errors import ConfigError, EnvError
from turnwise.infra.parsing import parse_json
from turnwise.infra.threads import gather_or_end
from turnwise.infra.untrusted import format_error
from turnwise.rollout.mcp_transports import open_address, open_program, require_mcp
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.tool_calling import ToolWorkflow
from turnwise.rollout.workflow import WorkflowTask, read_count
from turnwise.types import Message, ToolCall, ToolSchema, Trajectory

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
            return f"error: {format_error(error)}"
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
    return format_error(error)


_WHERE = "rollout.workflow_args"


class McpToolsWorkflow(ToolWorkflow):
    """See the module's text."""

    arg_names = frozenset(
        {
            "servers",
            "allow",
            "tool_timeout_s",
            "tool_timeouts",
            "open_timeout_s",
            "max_calls_per_episode",
            "max_result_characters",
            "max_tool_calls",
            "max_env_steps",
        }
    )

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        require_mcp()
        _read_servers(workflow_args)
        _read_names(workflow_args, "allow")
        _read_timeouts(workflow_args)
        _read_seconds(workflow_args, "open_timeout_s", 1.0)
        for name in ("max_calls_per_episode", "max_result_characters"):
            read_count(workflow_args, name, 1)

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        args = task.workflow_args
        open_timeout_s = _read_seconds(args, "open_timeout_s", 30.0)
        self._servers = [McpServer(target, open_timeout_s=open_timeout_s) for target in _read_servers(args)]
        self._timeout_s, self._timeouts = _read_timeouts(args)
        self._calls_left = read_count(args, "max_calls_per_episode", 32)
        self._max_characters = read_count(args, "max_result_characters", 2000)
        self._tools: dict[str, tuple[McpServer, ToolSchema]] = {}

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(schema for _, schema in self._tools.values())

    async def run(self) -> Trajectory:
        await gather_or_end(server.open() for server in self._servers)
        self._tools = self._choose_tools()
        return await super().run()

    async def run_call(self, call: ToolCall) -> Message:
        result = await self._answer(call)
        return Message("tool", result[: self._max_characters], tool_call_id=call.id, name=call.name)

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _answer(self, call: ToolCall) -> str:
        if call.name not in self._tools:
            return f"error: no such tool. Tools: {', '.join(self._tools)}"
        arguments = _read_arguments(call.arguments)
        if arguments is None:
            return "error: the arguments are no JSON object"
        if self._calls_left == 0:
            return "error: no tool calls are left in this episode"
        self._calls_left -= 1
        timeout_s = self._timeouts.get(call.name, self._timeout_s)
        try:
            return await self._tools[call.name][0].call(call.name, arguments, timeout_s)
        except TimeoutError:
            return f"error: the tool took longer than {timeout_s:g} s"

    def _choose_tools(self) -> dict[str, tuple[McpServer, ToolSchema]]:
        """Those that are allowed; of equal names the first server's."""
        allowed = _read_names(self.task.workflow_args, "allow")
        offered: dict[str, tuple[McpServer, ToolSchema]] = {}
        for server in self._servers:
            for schema in server.schemas:
                offered.setdefault(schema.name, (server, schema))
        if missing := [name for name in allowed or () if name not in offered]:
            raise ConfigError(
                f"{_WHERE}.allow: no server has a tool named {', '.join(missing)}; there are "
                f"{', '.join(offered) or 'none'}."
            )
        return offered if allowed is None else {name: offered[name] for name in allowed}


def _read_arguments(text: str) -> dict[str, Any] | None:
    try:
        given = parse_json(text or "{}")
    except ValueError:
        return None
    return given if isinstance(given, dict) else None


def _read_servers(workflow_args: Mapping[str, Any]) -> Sequence[str]:
    servers = _read_names(workflow_args, "servers")
    if not servers:
        raise ConfigError(
            f"{_WHERE}.servers is {workflow_args.get('servers')!r}; expected a list of commands and addresses, such as "
            "['python my_server.py', 'http://127.0.0.1:8000/mcp']."
        )
    for server in servers:
        try:
            is_command = bool(shlex.split(server))
        except ValueError as error:
            raise ConfigError(f"{_WHERE}.servers: '{server}' cannot be read as a command: {error}.") from error
        if not is_command:
            raise ConfigError(f"{_WHERE}.servers: '{server}' names no program; expected a command or an address.")
    return servers


def _read_names(workflow_args: Mapping[str, Any], name: str) -> list[str] | None:
    given = workflow_args.get(name)
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(item, str) for item in given):
        raise ConfigError(f"{_WHERE}.{name} is {given!r}; expected a list of texts.")
    return list(given)


def _read_seconds(workflow_args: Mapping[str, Any], name: str, default: float) -> float:
    return _above_zero(workflow_args.get(name, default), name)


def _above_zero(given: object, where: str) -> float:
    try:
        seconds = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{_WHERE}.{where}: {given!r} given; expected a number of seconds above 0.")
    return seconds


def _read_timeouts(workflow_args: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """For every tool, and for those that are named as `'search=60'`."""
    by_tool = {}
    for item in _read_names(workflow_args, "tool_timeouts") or ():
        name, _, seconds = item.partition("=")
        by_tool[name.strip()] = _above_zero(seconds, "tool_timeouts")
    return _read_seconds(workflow_args, "tool_timeout_s", 10.0), by_tool

"""A built-in workflow whose tools are those of MCP servers.

`rollout.workflow: mcp_tools` with `workflow_args: {servers: ['python my_server.py', 'http://127.0.0.1:8000/mcp']}`.
Each episode has sessions of its own. Tools can be allowed by name, every call has a deadline, an episode has a budget
of calls, and results are cut. What a tool refuses, and a call that takes too long, is told to the model; a server that
is gone costs the episode, and no other.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.errors import ConfigError
from turnwise.infra.parsing import parse_json
from turnwise.infra.threads import gather_or_end
from turnwise.rollout.mcp_servers import McpServer
from turnwise.rollout.mcp_transports import require_mcp
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.tool_calls import ToolWorkflow
from turnwise.rollout.workflow import WorkflowTask, read_count
from turnwise.types import Message, ToolCall, ToolSchema, Trajectory

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

"""Plain functions as tools of a model: names, schemas for chat templates, and calls.

Only functions that were given are called. Errors of a call are returned to the model as text, not raised.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from turnwise.config.component import import_target
from turnwise.context.recorder import Response
from turnwise.errors import ConfigError
from turnwise.infra.threads import gather_or_end
from turnwise.infra.untrusted import format_error
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.workflow import StepWiseEnvironmentWorkflow, WorkflowTask, read_count
from turnwise.types import Message, ToolCall, ToolSchema

_MAX_RESULT_CHARACTERS = 2000
"""Longer results are cut: a tool must not fill the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a model may call."""

    schema: ToolSchema
    function: Callable[..., object]
    arguments: type[BaseModel]

    @classmethod
    def of(cls, function: Callable[..., object]) -> Tool:
        """By its name, its docstring and the types of its parameters."""
        name = getattr(function, "__name__", type(function).__name__)
        arguments = _arguments_of(function, name)
        described = arguments.model_json_schema()
        schema = {key: described[key] for key in ("type", "properties", "required") if key in described}
        description = (inspect.getdoc(function) or "").strip()
        return cls(schema=ToolSchema(name, description, json.dumps(schema)), function=function, arguments=arguments)

    def run(self, arguments: str) -> str:
        """What a call returns, as text; or what is wrong with it."""
        try:
            given = self.arguments.model_validate_json(arguments or "{}")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            return f"error: {f'{where}: ' if where else ''}{first['msg']}"
        try:
            return str(self.function(**{name: getattr(given, name) for name in type(given).model_fields}))
        except Exception as error:  # noqa: BLE001 - the boundary: the model is told what its call led to
            return f"error: {format_error(error)}"


def _arguments_of(function: Callable[..., object], name: str) -> type[BaseModel]:
    """The parameters of a function as a model that checks them."""
    try:
        hints = get_type_hints(function)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"tool '{name}' does not tell its parameters: {error}. Annotate them.") from error
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is inspect.Parameter.empty else parameter.default,
        )
        for parameter in parameters.values()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


class Toolbox:
    """The tools of one workflow, by name."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._by_name = {tool.schema.name: tool for tool in tools}

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        return tuple(tool.schema for tool in self._by_name.values())

    def answer(self, call: ToolCall) -> Message:
        """The tool's message that answers a call."""
        tool = self._by_name.get(call.name)
        result = tool.run(call.arguments) if tool else f"error: no such tool. Tools: {', '.join(self._by_name)}"
        return Message("tool", result[:_MAX_RESULT_CHARACTERS], tool_call_id=call.id, name=call.name)


def find_tools(workflow_args: Mapping[str, Any]) -> Toolbox:
    """The functions behind `rollout.workflow_args.tools`."""
    where, given = "rollout.workflow_args.tools", workflow_args.get("tools")
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where} is {given!r}; expected a list of functions such as ['package.module:function'].")
    return Toolbox([Tool.of(_import_function(str(target), where)) for target in given])


def _import_function(target: str, where: str) -> Callable[..., object]:
    function = import_target(target, where)
    if not callable(function):
        raise ConfigError(f"{where}: '{target}' is {function!r}, which cannot be called.")
    return function


class ToolWorkflow(StepWiseEnvironmentWorkflow):
    """A model with tools, wherever they come from: calls and the answer after them are the calls of one step."""

    arg_names = frozenset({"max_tool_calls", "max_env_steps"})
    needs_tool_syntax: ClassVar[bool] = True
    """Whether the chat template must know how tools and calls are written."""

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        _max_calls(workflow_args)

    @property
    def max_calls(self) -> int:
        """Most replies of a turn that call tools."""
        return _max_calls(self.task.workflow_args)

    @property
    @abstractmethod
    def schemas(self) -> tuple[ToolSchema, ...]:
        """What the model may call."""

    @abstractmethod
    async def run_call(self, call: ToolCall) -> Message:
        """The tool's message that answers a call; what is wrong with a call is told in it."""

    async def answer(self, messages: list[Message]) -> Response:
        """The first reply that calls no tool, or the one after the last call that is allowed."""
        reply = await self._ask(messages)
        for _ in range(self.max_calls):
            if not reply.message.tool_calls:
                break
            messages += [reply.message, *await gather_or_end(map(self.run_call, reply.message.tool_calls))]
            reply = await self._ask(messages)
        return reply

    async def _ask(self, messages: list[Message]) -> Response:
        prefix = self.task.context.answer.forced_prefix
        (reply,) = await self.model.chat_async(messages, prefix=prefix, tools=self.schemas)
        return reply


def _max_calls(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_tool_calls", 4)


class ToolCallingWorkflow(ToolWorkflow):
    """`rollout.workflow: tool_calling`: the tools are functions of this process."""

    arg_names = frozenset({"tools", "max_tool_calls", "max_env_steps"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        find_tools(workflow_args)

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self._toolbox = find_tools(task.workflow_args)

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        return self._toolbox.schemas

    async def run_call(self, call: ToolCall) -> Message:
        # Functions may block, so each call has a thread.
        return await asyncio.get_running_loop().run_in_executor(self.task.threads, self._toolbox.answer, call)

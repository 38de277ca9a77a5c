"""A built-in workflow for models that call tools before they answer.

`rollout.workflow: tool_calling` with `workflow_args: {tools: ['package.module:function', …]}`. A reply that holds
`<tool_call>{"name": …, "arguments": {…}}</tool_call>` is answered with what the function returns, and the model goes
on; any other reply is its action in the environment. Only the named functions are ever called, and what goes wrong in
them is told to the model, not raised.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from turnwise.config.registry import import_target
from turnwise.errors import ConfigError
from turnwise.rollout.env_steps import EnvironmentPlayer, StepWiseEnvironmentWorkflow
from turnwise.rollout.model_handle import ModelHandle, Response
from turnwise.rollout.step_wise import WorkflowTask, read_count
from turnwise.types import Message

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_MAX_RESULT_CHARACTERS = 2000
"""Longer results are cut: a tool must not fill the context."""


class ToolCallingWorkflow(StepWiseEnvironmentWorkflow):
    """`rollout.workflow: tool_calling`: tool calls and the answer after them are the calls of one step."""

    arg_names = frozenset({"tools", "max_tool_calls", "max_env_steps"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        _find_tools(workflow_args.get("tools"))
        _max_calls(workflow_args)

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        tools = _find_tools(task.workflow_args.get("tools"))
        self.player = _ToolPlayer(task, model, tools, _max_calls(task.workflow_args))


class _ToolPlayer(EnvironmentPlayer):
    def __init__(
        self, task: WorkflowTask, model: ModelHandle, tools: Mapping[str, Callable[..., object]], max_calls: int
    ) -> None:
        super().__init__(task, model)
        self._tools = tools
        self._max_calls = max_calls

    async def ask(self, messages: list[Message]) -> Response:
        """The first reply that calls no tool, or the one after the last call that is allowed."""
        messages[0] = Message(messages[0].role, f"{_describe(self._tools)}\n\n{messages[0].content}")
        reply = await super().ask(messages)
        for _ in range(self._max_calls):
            asked = _read_call(reply.response_text)
            if asked is None:
                break
            result = await asyncio.get_running_loop().run_in_executor(self._task.threads, self._run, asked)
            messages += [
                Message("assistant", reply.response_text),
                Message("user", f"<tool_response>{result}</tool_response>"),
            ]
            reply = await super().ask(messages)
        return reply

    def _run(self, asked: str) -> str:
        try:
            call = json.loads(asked)
            tool, arguments = self._tools[call["name"]], call.get("arguments", {})
            inspect.signature(tool).bind(**arguments)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"error: {type(error).__name__}: {error}. Tools: {', '.join(self._tools)}"[:_MAX_RESULT_CHARACTERS]
        try:
            return str(tool(**arguments))[:_MAX_RESULT_CHARACTERS]
        except Exception as error:  # noqa: BLE001 - the boundary: the model is told what its call led to
            return f"error: {type(error).__name__}: {error}"[:_MAX_RESULT_CHARACTERS]


def _read_call(text: str) -> str | None:
    """What stands between the first pair of tags."""
    begin = text.find(_CALL)
    end = text.find(_END_CALL, begin)
    return text[begin + len(_CALL) : end] if 0 <= begin < end else None


def _max_calls(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_tool_calls", 4)


def _find_tools(given: Any) -> dict[str, Callable[..., object]]:
    where = "rollout.workflow_args.tools"
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where} is {given!r}; expected a list of functions such as ['package.module:function'].")
    tools = {}
    for target in given:
        function = import_target(str(target), where)
        if not callable(function):
            raise ConfigError(f"{where}: '{target}' is {function!r}, which cannot be called.")
        tools[str(target).partition(":")[2]] = cast("Callable[..., object]", function)
    return tools


def _describe(tools: Mapping[str, Callable[..., object]]) -> str:
    lines = [
        f"- {name}{inspect.signature(tool)}: {(inspect.getdoc(tool) or '').strip()}" for name, tool in tools.items()
    ]
    example = f'{_CALL}{{"name": "{next(iter(tools))}", "arguments": {{}}}}{_END_CALL}'
    return "\n".join(["You may call tools before you answer:", *lines, f"Call one like this: {example}"])

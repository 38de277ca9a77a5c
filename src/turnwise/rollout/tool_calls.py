"""A built-in workflow for models that call tools before they answer.

`rollout.workflow: tool_calling` with `workflow_args: {tools: ['package.module:function', …]}`. How tools are shown and
how a call is written is the chat template's business. Calls are answered with what the functions return, and the model
goes on; a reply without a call is its action in the environment.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from turnwise.context.recorder import Response
from turnwise.infra.threads import gather_or_end
from turnwise.rollout.environment import StepWiseEnvironmentWorkflow
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.tools import find_tools
from turnwise.rollout.workflow import WorkflowTask, read_count
from turnwise.types import Message, ToolCall, ToolSchema


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


def _max_calls(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_tool_calls", 4)

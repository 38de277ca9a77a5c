"""A built-in workflow for models that call tools before they answer.

`rollout.workflow: tool_calling` with `workflow_args: {tools: ['package.module:function', …]}`. How tools are shown and
how a call is written is the chat template's business. Calls are answered with what the functions return, and the model
goes on; a reply without a call is its action in the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from turnwise.context.recorder import Response
from turnwise.rollout.environment import StepWiseEnvironmentWorkflow
from turnwise.rollout.model_handle import ModelHandle
from turnwise.rollout.tools import find_tools
from turnwise.rollout.workflow import WorkflowTask, read_count
from turnwise.types import Message


class ToolCallingWorkflow(StepWiseEnvironmentWorkflow):
    """`rollout.workflow: tool_calling`: tool calls and the answer after them are the calls of one step."""

    arg_names = frozenset({"tools", "max_tool_calls", "max_env_steps"})

    @classmethod
    def check_args(cls, workflow_args: Mapping[str, Any]) -> None:
        super().check_args(workflow_args)
        find_tools(workflow_args)
        _max_calls(workflow_args)

    def __init__(self, *, task: WorkflowTask, model: ModelHandle) -> None:
        super().__init__(task=task, model=model)
        self._toolbox = find_tools(task.workflow_args)
        self._max_calls = _max_calls(task.workflow_args)

    async def answer(self, messages: list[Message]) -> Response:
        """The first reply that calls no tool, or the one after the last call that is allowed."""
        reply = await self._ask(messages)
        for _ in range(self._max_calls):
            if not reply.message.tool_calls:
                break
            messages += [reply.message, *await self._run(reply.message)]
            reply = await self._ask(messages)
        return reply

    async def _ask(self, messages: list[Message]) -> Response:
        prefix = self.task.context.answer.forced_prefix
        (reply,) = await self.model.chat_async(messages, prefix=prefix, tools=self._toolbox.schemas)
        return reply

    async def _run(self, said: Message) -> list[Message]:
        """The results of all calls of a reply, in their order; functions may block, so each has a thread."""
        loop = asyncio.get_running_loop()
        running = [loop.run_in_executor(self.task.threads, self._toolbox.answer, call) for call in said.tool_calls]
        return list(await asyncio.gather(*running))


def _max_calls(workflow_args: Mapping[str, Any]) -> int:
    return read_count(workflow_args, "max_tool_calls", 4)

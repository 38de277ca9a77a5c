"""A built-in workflow that thinks and acts in turns (arXiv 2210.03629), in plain text.

`rollout.workflow: react` with `workflow_args: {tools: ['package.module:function', …]}`. It needs nothing of the chat
template: tools are explained in the first message, and the model calls one by a line `Action: NAME {"argument": …}`.
What comes of it is the next message. A reply without such a line is the action in the environment.
"""

from __future__ import annotations

from turnwise.context.recorder import Response
from turnwise.rollout.tool_calls import ToolCallingWorkflow
from turnwise.types import Message, ToolCall, ToolSchema, Trajectory

_ACTION, _OBSERVATION = "Action:", "Observation:"
_EXPLAIN = """\
Before you answer you may use tools. Think, then write one call in a line of its own:
Thought: what you need to know
Action: NAME {"argument": value}
You are told what came of it in a line that begins with Observation. When you know enough, answer without an action.
Tools:
"""


class ReactWorkflow(ToolCallingWorkflow):
    """`rollout.workflow: react`: thoughts, calls and the answer after them are the calls of one step."""

    needs_tool_syntax = False

    async def run(self) -> Trajectory:
        await self.play_episode(_EXPLAIN + "".join(map(_describe, self.schemas)) + "\n")
        return self.end()

    async def answer(self, messages: list[Message]) -> Response:
        """The first reply without an action, or the one after the last call that is allowed."""
        prefix = self.task.context.answer.forced_prefix
        (reply,) = await self.model.chat_async(messages, prefix=prefix)
        for _ in range(self.max_calls):
            call = read_action(reply.response_text)
            if call is None:
                break
            result = await self.run_call(call)
            messages += [Message("assistant", reply.response_text), Message("user", f"{_OBSERVATION} {result.text}")]
            (reply,) = await self.model.chat_async(messages, prefix=prefix)
        return reply


def read_action(text: str) -> ToolCall | None:
    """The first line that calls a tool; what a model writes behind it, such as a made-up observation, is not read.

    Example: `Thought: 2 and 3\\nAction: add {"a": 2, "b": 3}` calls `add`.
    """
    for line in text.splitlines():
        if line.strip().startswith(_ACTION):
            name, _, arguments = line.strip().removeprefix(_ACTION).strip().partition(" ")
            return ToolCall(name, arguments.strip())
    return None


def _describe(schema: ToolSchema) -> str:
    about = " ".join(schema.description.split())
    return f"{schema.name}: {about} Arguments: {schema.parameters}\n"

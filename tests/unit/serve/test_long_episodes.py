"""Two hundred calls with results of tools over HTTP, in the words of each API: one row, and the tokens that the engine
saw."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .stage import Script, perform

pytestmark = pytest.mark.slow

NUM_CALLS = 200
CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}


class ChatAgent:
    path = "/v1/chat/completions"
    tools: Any = ({"type": "function", "function": {"name": "look", "parameters": PARAMETERS}},)

    def __init__(self) -> None:
        self.said: list[Any] = [{"role": "user", "content": "what is there?"}]

    def body(self) -> dict[str, Any]:
        return {"messages": self.said}

    def act(self, reply: dict[str, Any], result: str) -> bool:
        """Take a reply and answer its call, as frameworks do; says whether there was one."""
        message = reply["choices"][0]["message"]
        self.said.append(message)
        for call in message.get("tool_calls", ()):
            # Parsed and written again.
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
            self.said.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return "tool_calls" in message


class ResponsesAgent(ChatAgent):
    path = "/v1/responses"
    tools = ({"type": "function", "name": "look", "parameters": PARAMETERS},)

    def body(self) -> dict[str, Any]:
        return {"input": self.said, "instructions": "Be brief."}

    def act(self, reply: dict[str, Any], result: str) -> bool:
        calls = [item for item in reply["output"] if item["type"] == "function_call"]
        self.said += reply["output"]
        self.said += [{"type": "function_call_output", "call_id": c["call_id"], "output": result} for c in calls]
        return bool(calls)


class MessagesAgent(ChatAgent):
    path = "/v1/messages"
    tools = ({"name": "look", "input_schema": PARAMETERS},)

    def body(self) -> dict[str, Any]:
        return {"messages": self.said, "system": "Be brief.", "max_tokens": 100}

    def act(self, reply: dict[str, Any], result: str) -> bool:
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": result} for call in calls]
        self.said += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
        return bool(calls)


@pytest.mark.parametrize("kind", [ChatAgent, ResponsesAgent, MessagesAgent])
def test_two_hundred_calls_with_results_are_one_row(kind: type[ChatAgent]) -> None:
    async def scene(_: str, client: httpx.AsyncClient) -> None:
        agent, num_calls, goes_on = kind(), 0, True
        while goes_on:
            reply = await client.post(agent.path, json={"model": "m", "tools": agent.tools, **agent.body()})
            assert reply.status_code == 200, reply.text
            num_calls += 1
            goes_on = agent.act(reply.json(), f"a door {num_calls}")
        assert num_calls == NUM_CALLS

    host = perform(Script(*[CALL] * (NUM_CALLS - 1), "a door"), scene)
    (row,) = host.rows()
    assert row.turn_indices.tolist() == list(range(NUM_CALLS))
    assert host.differing() == []
    assert not any(call.is_anew for call in host.calls)

"""The house with the anthropic client: the messages API with tools.

python examples/agents/anthropic_client.py [MODEL]
"""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, DefaultHttpxClient
from house import MAX_CALLS, TASK, House, train

import turnwise as tw

CONNECTIONS = DefaultHttpxClient()
"""Shared by all episodes: making them takes longer than a call of the built-in model."""


def describe(name: str, description: str, **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "input_schema": schema}


TOOLS = [
    describe("look", "Look around in the house."),
    describe("take", "Take what lies at a place.", place={"type": "string"}),
    describe("open_door", "Open the door with the key."),
]


def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)
    # This client adds the `/v1` itself.
    client = Anthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key, http_client=CONNECTIONS)
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for _ in range(MAX_CALLS):
        reply = client.messages.create(model="policy", max_tokens=256, messages=messages, tools=TOOLS)
        messages.append({"role": "assistant", "content": reply.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": act(house, block)}
            for block in reply.content
            if block.type == "tool_use"
        ]
        if not results:
            break
        messages.append({"role": "user", "content": results})
    return house.reward()


def act(house: House, asked: Any) -> str:
    """Do what the model asks for, if it is one of the tools and can be called so."""
    if asked.name not in ("look", "take", "open_door"):
        return "There is no such tool."
    try:
        return str(getattr(house, asked.name)(**asked.input))
    except TypeError as error:
        return str(error)


if __name__ == "__main__":
    train("anthropic_client")

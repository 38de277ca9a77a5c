"""The house with nothing but the openai client: chat completions with tools, and a loop of one's own.

python examples/agents/openai_client.py [MODEL]
"""

from __future__ import annotations

import json
from typing import Any

from house import MAX_CALLS, TASK, House, train
from openai import DefaultHttpxClient, OpenAI

import turnwise as tw

CONNECTIONS = DefaultHttpxClient()
"""Shared by all episodes: making them takes longer than a call of the built-in model."""


def describe(name: str, description: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    describe("look", "Look around in the house."),
    describe("take", "Take what lies at a place.", place={"type": "string"}),
    describe("open_door", "Open the door with the key."),
]


def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)
    client = OpenAI(base_url=base_url, api_key=api_key, http_client=CONNECTIONS)
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for _ in range(MAX_CALLS):
        reply = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": act(house, call.function)})
    return house.reward()


def act(house: House, asked: Any) -> str:
    """Do what the model asks for, if it is one of the tools and can be called so."""
    if asked.name not in ("look", "take", "open_door"):
        return "There is no such tool."
    try:
        return str(getattr(house, asked.name)(**json.loads(asked.arguments)))
    except TypeError as error:
        return str(error)


if __name__ == "__main__":
    train("openai_client")

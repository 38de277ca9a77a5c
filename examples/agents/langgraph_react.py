"""The house with LangGraph's ReAct agent.

python examples/agents/langgraph_react.py [MODEL]
"""

from __future__ import annotations

from contextlib import suppress

from house import MAX_CALLS, TASK, House, train
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

import turnwise as tw

CONNECTIONS = {"http_client": DefaultHttpxClient(), "http_async_client": DefaultAsyncHttpxClient()}
"""Shared by all episodes: making them takes longer than a call of the built-in model."""


def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)
    model = ChatOpenAI(model="policy", base_url=base_url, api_key=api_key, **CONNECTIONS)  # type: ignore[arg-type]
    agent = create_react_agent(model, tools=[house.look, house.take, house.open_door])
    with suppress(GraphRecursionError):
        agent.invoke({"messages": [("user", TASK)]}, {"recursion_limit": 2 * MAX_CALLS})
    return house.reward()


if __name__ == "__main__":
    train("langgraph_react")

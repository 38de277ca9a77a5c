"""The house with the OpenAI Agents SDK, over the Responses API.

python examples/agents/openai_agents.py [MODEL]
"""

from __future__ import annotations

import ssl
from contextlib import suppress

from agents import Agent, AgentsException, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from house import MAX_CALLS, TASK, House, train
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import turnwise as tw

set_tracing_disabled(True)

CERTIFICATES = ssl.create_default_context()
"""Shared by all episodes: reading them takes longer than a call of the built-in model."""


async def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)
    connections = DefaultAsyncHttpxClient(verify=CERTIFICATES)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=connections) as client:
        agent = Agent(
            name="walker",
            instructions="Use the tools.",
            model=OpenAIResponsesModel(model="policy", openai_client=client),
            tools=[function_tool(house.look), function_tool(house.take), function_tool(house.open_door)],
        )
        # Too many turns, or a tool that there is not: the episode ends with what it has earned.
        with suppress(AgentsException):
            await Runner.run(agent, TASK, max_turns=MAX_CALLS)
    return house.reward()


if __name__ == "__main__":
    train("openai_agents")

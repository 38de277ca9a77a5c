"""The house with pydantic-ai.

python examples/agents/pydantic_ai_agent.py [MODEL]
"""

from __future__ import annotations

import ssl
from contextlib import suppress

from house import MAX_CALLS, TASK, House, train
from openai import DefaultAsyncHttpxClient
from pydantic_ai import Agent, AgentRunError, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import turnwise as tw

CERTIFICATES = ssl.create_default_context()
"""Shared by all episodes: reading them takes longer than a call of the built-in model."""


async def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)
    async with DefaultAsyncHttpxClient(verify=CERTIFICATES) as connections:
        provider = OpenAIProvider(base_url=base_url, api_key=api_key, http_client=connections)
        agent = Agent(OpenAIChatModel("policy", provider=provider), tools=[house.look, house.take, house.open_door])
        # Too many calls, or one that is wrong twice: the episode ends with what it has earned.
        with suppress(AgentRunError):
            await agent.run(TASK, usage_limits=UsageLimits(request_limit=MAX_CALLS))
    return house.reward()


if __name__ == "__main__":
    train("pydantic_ai_agent")

"""The house with pydantic-ai.

python examples/agents/pydantic_ai_agent.py [MODEL]
"""

from __future__ import annotations

from contextlib import suppress

from house import MAX_CALLS, TASK, House, train
from pydantic_ai import Agent, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import turnwise as tw


async def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)
    model = OpenAIChatModel("policy", provider=OpenAIProvider(base_url=base_url, api_key=api_key))
    agent = Agent(model, tools=[house.look, house.take, house.open_door])
    with suppress(UsageLimitExceeded):
        await agent.run(TASK, usage_limits=UsageLimits(request_limit=MAX_CALLS))
    return house.reward()


if __name__ == "__main__":
    train("pydantic_ai_agent")

"""The house with smolagents' agent that calls tools.

python examples/agents/smolagents_tools.py [MODEL]
"""

from __future__ import annotations

from contextlib import suppress

from house import MAX_CALLS, TASK, House, train
from openai import DefaultHttpxClient
from smolagents import AgentError, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

import turnwise as tw

CONNECTIONS = DefaultHttpxClient()
"""Shared by all episodes: making them takes longer than a call of the built-in model."""
PROMPTS = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": "Use the tools."}
"""Its own are ten thousand characters long, which a model that was never trained would read for nothing."""


def play(*, base_url: str, api_key: str, task: tw.WorkflowTask) -> dict[str, object]:
    house = House(task.seed)

    @tool
    def look() -> str:
        """Look around in the house."""
        return house.look()

    @tool
    def take(place: str) -> str:
        """Take what lies at a place.

        Args:
            place: where to reach
        """
        return house.take(place)

    @tool
    def open_door() -> str:
        """Open the door with the key."""
        return house.open_door()

    model = OpenAIModel("policy", api_base=base_url, api_key=api_key, client_kwargs={"http_client": CONNECTIONS})
    agent = ToolCallingAgent(
        [look, take, open_door],
        model,
        PROMPTS,  # type: ignore[arg-type]
        max_steps=MAX_CALLS,
        verbosity_level=LogLevel.OFF,
    )
    # A conversation that has grown too long: the episode ends with what it has earned.
    with suppress(AgentError):
        agent.run(TASK)
    return house.reward()


if __name__ == "__main__":
    train("smolagents_tools")

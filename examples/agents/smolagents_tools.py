"""The house with smolagents' agent that calls tools.

python examples/agents/smolagents_tools.py [MODEL]
"""

from __future__ import annotations

from house import MAX_CALLS, TASK, House, train
from smolagents import OpenAIModel, ToolCallingAgent, tool

import turnwise as tw


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

    model = OpenAIModel(model_id="policy", api_base=base_url, api_key=api_key)
    agent = ToolCallingAgent(tools=[look, take, open_door], model=model, max_steps=MAX_CALLS, verbosity_level=0)
    agent.run(TASK)
    return house.reward()


if __name__ == "__main__":
    train("smolagents_tools")

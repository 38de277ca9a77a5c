"""The task that every agent beside this file plays: find the key, take it, open the door.

The agents are written as their frameworks' own pages show it. None knows that it is being trained: each is given a base
URL and a key, and says what its episode was worth. `train` is all that training needs.
"""

from __future__ import annotations

import argparse

import turnwise as tw

TASK = "You are in a house with a locked door. Open it."
PLACES = ("shelf", "table", "carpet", "drawer")
MAX_CALLS = 6


class House:
    """A key lies somewhere, and the door opens with it."""

    def __init__(self, seed: int) -> None:
        self.place = PLACES[seed % len(PLACES)]
        self.has_looked = self.has_key = self.is_open = False

    def look(self) -> str:
        """Look around in the house."""
        self.has_looked = True
        return f"There is a key: {self.place}."

    def take(self, place: str) -> str:
        """Take what lies at a place.

        Args:
            place: where to reach
        """
        self.has_key = self.has_key or place == self.place
        return "You have the key." if self.has_key else "There is nothing."

    def open_door(self) -> str:
        """Open the door with the key."""
        self.is_open = self.has_key
        return "The door is open." if self.is_open else "The door is locked."

    def reward(self) -> dict[str, object]:
        """What the episode was worth, each part of the way counting, and whether the task is done."""
        earned = 0.2 * self.has_looked + 0.3 * self.has_key + 0.5 * self.is_open
        return {"reward": earned, "is_success": self.is_open}


def train(program: str) -> None:
    """Train the agent of a file for a few steps, from a model whose chat template knows tools."""
    parser = argparse.ArgumentParser(description=f"Train the agent '{program}' for a few steps.")
    parser.add_argument("model", help="a model folder, or a name such as Qwen/Qwen3-0.6B")
    parser.add_argument("--steps", type=int, default=10, help="updates of the policy (default: 10)")
    options = parser.parse_args()
    run = tw.train(
        "frozenlake",
        {
            "model.path": options.model,
            "warm_start.type": "none",
            "context.answer.forced_prefix": "",
            "context.max_tokens": 4096,
            "context.max_response_tokens": 256,
            "rollout.workflow": "openai_program",
            "rollout.workflow_args.program": f"{program}:play",
            "rollout.max_turns": MAX_CALLS,
            "rollout.groups": 8,
            "rollout.group_size": 8,
            "learn.steps": options.steps,
        },
    )
    print(f"{program}: return {run.summary.return_before:.2f} -> {run.summary.return_after:.2f}, see {run.path}")

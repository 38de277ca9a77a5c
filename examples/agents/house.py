"""The task that every agent beside this file plays: find the key, take it, open the door.

The agents are written as their frameworks' own pages show it. None knows that it is being trained: each is given a base
URL and a key, and says what its episode was worth. `train` is all that training needs.
"""

from __future__ import annotations

import argparse
import json
from typing import NoReturn

from teacher import teaching

import turnwise as tw
from turnwise.envs.base import BaseEnv

TASK = "You are in a house with a locked door. Open it."
PLACES = ("shelf", "table", "carpet", "drawer")
MAX_CALLS = 6
TINY = {
    "model.tiny.vocab_size": 768,
    "warm_start.type": "endpoint",
    "warm_start.episodes": 32,
    "warm_start.batch_rows": 16,
    "context.max_tokens": 1024,
    "context.max_response_tokens": 24,
    "learn.optim.lr": 6e-4,
    "learn.optim.warmup_steps": 2,
    "eval.episodes": 64,
    "eval.every": 0,
}
"""What fits the built-in model, which knows no words before its lessons."""


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


class HouseTexts(BaseEnv):
    """What is said in the house: the tokenizer of the built-in model is made of such texts. Nobody plays here; agents
    play the house by their own tools."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        house = House(seed or 0)
        calls = [_write_call("look"), _write_call("take", place=house.place), _write_call("open_door")]
        results = [house.look(), house.take(house.place), house.open_door()]
        said = [f"{call} <tool_response>{result}" for call, result in zip(calls, results, strict=True)]
        return "\n".join([*_TOOLS, TASK, *said, "It is open."])

    def step(self, action: str) -> NoReturn:
        raise NotImplementedError("agents play the house by their own tools")


def _write_tool(name: str, about: str, **properties: dict[str, str]) -> str:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return json.dumps({"type": "function", "function": {"name": name, "description": about, "parameters": parameters}})


def _write_call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


_TOOLS = (
    _write_tool("look", "Look around in the house."),
    _write_tool("take", "Take what lies at a place.", place={"type": "string"}),
    _write_tool("open_door", "Open the door with the key."),
)


def train(program: str) -> None:
    """Train the agent of a file for a few steps: the built-in model after some lessons, or one that knows tools."""
    parser = argparse.ArgumentParser(description=f"Train the agent '{program}' for a few steps.")
    parser.add_argument("model", nargs="?", default="tiny", help="a model folder, or a name such as Qwen/Qwen3-0.6B")
    parser.add_argument("--steps", type=int, default=20, help="updates of the policy (default: 20)")
    parser.add_argument("--lessons", type=int, default=40, help="steps of imitation before them (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the run (default: 0)")
    parser.add_argument("--root", default="runs", help="where run directories are made (default: runs)")
    options = parser.parse_args()
    overrides: dict[str, object] = {
        "env.type": "house:HouseTexts",
        "model.path": options.model,
        "context.answer.forced_prefix": "",
        "context.max_tokens": 4096,
        "context.max_response_tokens": 256,
        "rollout.workflow": "openai_program",
        "rollout.workflow_args.program": f"{program}:play",
        "rollout.max_turns": MAX_CALLS,
        "rollout.groups": 8,
        "learn.steps": options.steps,
        "run.seed": options.seed,
        "run.root": options.root,
    }
    with teaching() as url:
        if options.model == "tiny":
            overrides |= {**TINY, "warm_start.url": url, "warm_start.steps": options.lessons}
        run = tw.train("grpo", overrides)
    told = run.summary
    print(
        f"{program}: success {told.success_before:.0%} -> {told.success_after:.0%}, "
        f"return {told.return_before:.2f} -> {told.return_after:.2f}, see {run.path}"
    )

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
from turnwise.infra.untrusted import format_success_rate

TASK = "You are in a house with a locked door. Open it."
PLACES = ("shelf", "table", "carpet", "drawer")
MAX_CALLS = 6
TINY = {
    "model.tiny.vocab_size": 1024,
    "warm_start.type": "endpoint",
    "warm_start.episodes": 32,
    "warm_start.batch_rows": 8,
    "context.max_tokens": 2048,
    "context.max_response_tokens": 16,
    "learn.optim.lr": 6e-4,
    "learn.optim.warmup_steps": 2,
    "learn.optim.schedule": "constant",
    # Calls go wrong by tokens that are too much by chance already: a bonus for chance would unlearn the lessons.
    "learn.entropy_coef": 0.0,
    "rollout.groups": 16,
    "eval.episodes": 128,
    "eval.temperature": 1.0,
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
    """What is said in the house: the tokenizer of the built-in model is made of such texts, and a word that they lack
    is read and written byte by byte. Nobody plays here; agents play the house by their own tools."""

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        house = House(seed or 0)
        calls = [_write_call("look"), _write_call("take", place=house.place), _write_call("open_door")]
        results = [house.take(""), house.open_door(), house.look(), house.take(house.place), house.open_door()]
        said = [TASK, *calls, *(f"<tool_response>{result}</tool_response>" for result in results), "It is open."]
        retold = f"Calling tools:\n[{{'id': 'name': 'take', 'arguments': {{'place': '{house.place}'}}}}}}]"
        # In turns, so that each also stands at the beginning of a text: behind a space it is another word.
        texts = [*said, retold, *_TOOLS, *_SPELLINGS]
        return texts[(seed or 0) // len(PLACES) % len(texts)]

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
    _write_call("final_answer", answer="open"),
)
_SPELLINGS = (
    # LangGraph
    r'place.\n\n Args:\n place: where to reach", {"properties": {}, {"place": {"type": "string"}}, ["place"],',
    '"type": "object"}}}',
    # openai-agents
    '{"properties": {"description": "title": "Place", "look_args", "take_args", "open_door_args", "object",',
    '"additionalProperties": false, false}}} "required": []}}} "string"}}, ["place"], Use the tools.',
    # pydantic-ai
    '{"additionalProperties": false, "properties": {}, {"place": {"description": "where to reach", "type": "object"}}}',
    # smolagents
    f"New task:\n{TASK}",
    "Observation:\nThere is a key:",
    "Calling tools:\n[{'id': 'type': 'function', 'function': {'name': 'look', 'open_door', 'arguments': {}}}]",
    '"string", "description": "where to reach"}}, ["place"]}}} "final_answer", {"answer": ["answer"]}}}',
    '"Provides "The final answer to the given problem. problem.", problem"}}, Error:\n Error while parsing',
    "tool call from model output: contain any JSON blob. blob.\nNow let's retry: retried several times, try",
    "take care not repeat previous errors! If completely different approach. used is invalid due following",
    "error: Expecting ',' delimiter: line 1 column (char was: decoding failed on that specific part of blob:\n",
)
"""Words that not every framework uses, as each spells them."""


def train(program: str) -> None:
    """Train the agent of a file for a few steps: the built-in model after some lessons, or one that knows tools."""
    parser = argparse.ArgumentParser(description=f"Train the agent '{program}' for a few steps.")
    parser.add_argument("model", nargs="?", default="tiny", help="a model folder, or a name such as Qwen/Qwen3-0.6B")
    parser.add_argument("--steps", type=int, default=10, help="updates of the policy (default: 10)")
    parser.add_argument("--lessons", type=int, default=30, help="steps of imitation before them (default: 30)")
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
        f"{program}: success {format_success_rate(told.success_before)} -> {format_success_rate(told.success_after)}, "
        f"return {told.return_before:.2f} -> {told.return_after:.2f} over {told.eval_episodes} held-out episodes, "
        f"see {run.path}"
    )

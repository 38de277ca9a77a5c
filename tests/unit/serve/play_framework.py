"""Plays one agent of `examples/agents` against a teacher that knows the way, and prints what was recorded.

Run as a program, since the frameworks live in an environment of their own: `python play_framework.py NAME WAY`. On the
way `short` nothing is in between; on the way `long` there are 200 calls; on the way `hostile` calls come first that
nobody should follow.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "agents"))

from tests.unit.serve.stage import KEY, OneEpisode, tool_template
from turnwise.engine.scripted import ScriptedEngine
from turnwise.serve.recorder import ChatEndpoint
from turnwise.types import GenerateRequest

NUM_CALLS = {"short": 6, "long": 200, "hostile": 20}
HOSTILE = [
    ("take", {"place": "../../../../etc/passwd"}),
    ("take", {"place": "x" * 100}),
    ("take", {"place": {"a": [[[[[[[[{}]]]]]]]]}}),
    ("take", {"place": 7, "force": True}),
    ("look", {"__class__": "House"}),
    ("open_door", {"command": "$(touch /tmp/never); import os"}),
    ("reward", {}),
    ("__init__", {"seed": 0}),
]
"""Calls of the tools that there are, and of others."""


class Teacher(ScriptedEngine):
    """Looks, takes, opens and answers, whatever the framework makes of it."""

    def __init__(self, place: str, before: list[Any]) -> None:
        super().__init__(self._reply, stop_ids=tool_template().stop_ids)
        self._way: list[Any] = [*before, ("look", {}), ("take", {"place": place}), ("open_door", {})]

    def _reply(self, request: GenerateRequest) -> list[int]:
        asked = request.asked
        assert asked is not None
        number = len(self.requests)
        call = self._way[number] if number < len(self._way) else None
        if call is None and any(tool.name == "final_answer" for tool in asked.tools):
            call = ("final_answer", {"answer": "It is open."})
        text = "It is open."
        if call is not None:
            text = f'<tool_call>\n{{"name": "{call[0]}", "arguments": {json.dumps(call[1])}}}\n</tool_call>'
            text = text.removeprefix(asked.prefix)
        return [*tool_template().encode_text(text).tolist(), tool_template().end_of_turn_id]


async def play(name: str, way: str) -> dict[str, object]:
    import house  # noqa: PLC0415 - of the examples

    house.MAX_CALLS = NUM_CALLS[way]
    before = {"short": [], "long": [("look", {})] * (NUM_CALLS["long"] - 4), "hostile": HOSTILE}[way]
    host = OneEpisode(Teacher(house.House(5).place, before), keeps_sampling=True)
    endpoint = ChatEndpoint(host, token=KEY, model_name="policy")
    await endpoint.start()
    program = import_module(name).play
    given = {"base_url": endpoint.base_url("only"), "api_key": KEY, "task": SimpleNamespace(seed=5)}
    try:
        is_async = asyncio.iscoroutinefunction(program)
        earned = await (program(**given) if is_async else asyncio.to_thread(program, **given))
    finally:
        await endpoint.close()
    num_anew, num_rows = sum(call.is_anew for call in host.calls), len(host.rows())
    is_exact = len(host.calls) == len(host.engine.requests) and host.differing() == []
    return {**earned, "calls": len(host.calls), "rows": num_rows, "encoded_anew": num_anew, "is_exact": is_exact}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(play(*sys.argv[1:]))) + "\n")

"""Plays one agent of `examples/agents` against a teacher that knows the way, and prints what was recorded.

Run as a program, since the frameworks live in an environment of their own: `python play_framework.py NAME`.
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

import numpy as np

from tests.unit.serve.stage import KEY, OneEpisode, tool_template
from turnwise.engine.scripted import ScriptedEngine
from turnwise.serve.endpoint import ChatEndpoint
from turnwise.types import GenerateRequest


class Teacher(ScriptedEngine):
    """Looks, takes, opens and answers, whatever the framework makes of it."""

    def __init__(self, place: str) -> None:
        super().__init__(self._reply, stop_ids=tool_template().stop_ids)
        self._way: list[Any] = [("look", {}), ("take", {"place": place}), ("open_door", {})]

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


async def play(name: str) -> dict[str, object]:
    from house import House  # noqa: PLC0415 - of the examples

    host = OneEpisode(Teacher(House(5).place), keeps_sampling=True)
    endpoint = ChatEndpoint(host, token=KEY, model_name="policy")
    await endpoint.start()
    program = import_module(name).play
    given = {"base_url": endpoint.base_url("only"), "api_key": KEY, "task": SimpleNamespace(seed=5)}
    try:
        is_async = asyncio.iscoroutinefunction(program)
        earned = await (program(**given) if is_async else asyncio.to_thread(program, **given))
    finally:
        await endpoint.close()
    rows, engine = host.rows(), host.engine
    is_exact = len(host.calls) == len(engine.requests) and all(
        np.array_equal(call.prompt_ids, request.prompt_ids) and np.array_equal(call.tokens, completion.token_ids)
        for call, request, completion in zip(host.calls, engine.requests, engine.completions, strict=True)
    )
    num_anew = sum(call.is_anew for call in host.calls)
    return {**earned, "calls": len(host.calls), "rows": len(rows), "encoded_anew": num_anew, "is_exact": is_exact}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(play(sys.argv[1]))) + "\n")

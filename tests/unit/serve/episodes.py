"""Model handles over a scripted engine, for the tests of this room."""

from __future__ import annotations

import asyncio

from tests.clock import HANG_S
from tests.unit.context.chat_families import template_of
from turnwise.config.schema import AnswerFormat, ContextSettings
from turnwise.engine.scripted import ScriptedEngine
from turnwise.rollout.model_handle import ModelHandle
from turnwise.types import GenerateRequest, Sampling

TEMPLATE = template_of("chatml")
CONTEXT = ContextSettings(answer=AnswerFormat(forced_prefix="<answer>"), max_tokens=400, max_response_tokens=16)
KEY = "secret-key"


def say(text: str) -> list[int]:
    return [*TEMPLATE.encode_text(text).tolist(), TEMPLATE.end_of_turn_id]


class EchoEngine(ScriptedEngine):
    """Answers each request with a word that is its own; the first waits until `at_once` are there."""

    def __init__(self, at_once: int = 1) -> None:
        super().__init__(self._reply, stop_ids=TEMPLATE.stop_ids, policy_version=3)
        self._num_awaited = at_once
        self._all_are_there = asyncio.Event()

    def _reply(self, request: GenerateRequest) -> list[int]:
        return say(f"{request.seed % 9973} ok")

    async def generate(self, request: GenerateRequest):  # type: ignore[no-untyped-def]
        self._num_awaited -= 1
        if self._num_awaited <= 0:
            self._all_are_there.set()
        await asyncio.wait_for(self._all_are_there.wait(), HANG_S)
        return await super().generate(request)


def open_model(engine: ScriptedEngine, name: str = "episode") -> ModelHandle:
    """To be called in the event loop that serves it."""
    return ModelHandle(
        engine,
        TEMPLATE,
        sampling=Sampling(temperature=0.7, max_new_tokens=CONTEXT.max_response_tokens),
        max_tokens=CONTEXT.max_tokens,
        seed=1,
        name=name,
    )

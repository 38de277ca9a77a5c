"""One episode behind an endpoint, answered from a script, for whoever talks to it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NoReturn

import httpx
import numpy as np

from tests.clock import HANG_S
from turnwise.context.recorder import Response, make_trajectory
from turnwise.context.template import HFChatTemplate
from turnwise.engine.scripted import ScriptedEngine
from turnwise.errors import ServeError
from turnwise.experience.build import merge_prefixes, split_trajectory
from turnwise.models.tiny import fit_tokenizer
from turnwise.rollout.model_handle import ModelHandle
from turnwise.serve.episode import Episode
from turnwise.serve.recorder import ChatEndpoint
from turnwise.types import Experience, Sampling, StopReason, Task, TrajectoryId

KEY = "secret-key"


@cache
def tool_template() -> HFChatTemplate:
    """The built-in models' own: it knows tools."""
    return HFChatTemplate(fit_tokenizer(["look at the door and take the key", '{"name": "look"}'], 400))


class Script(ScriptedEngine):
    """Says one text after the other, each ended as a reply is."""

    def __init__(self, *texts: str) -> None:
        template = tool_template()
        replies = iter([[*template.encode_text(text).tolist(), template.end_of_turn_id] for text in texts])
        super().__init__(lambda _: next(replies), stop_ids=template.stop_ids, policy_version=3)


class OneEpisode:
    """A host with a single episode, in which everything happens."""

    def __init__(
        self,
        engine: ScriptedEngine,
        *,
        keeps_sampling: bool = False,
        template: HFChatTemplate | None = None,
        prefix: str = "",
    ) -> None:
        self.engine = engine
        model = ModelHandle(
            engine,
            template or tool_template(),
            sampling=Sampling(temperature=0.7, max_new_tokens=200),
            max_tokens=40_000,
            seed=1,
            name="episode",
        )
        self.episode = Episode(
            "only", model, prefix=prefix, max_calls=400, max_response_tokens=200, keeps_sampling=keeps_sampling
        )

    @property
    def calls(self) -> list[Response]:
        return self.episode.model.calls

    def rows(self) -> list[Experience]:
        """What would be trained."""
        task = Task(tag="words", seed=0)
        trajectory = make_trajectory(
            TrajectoryId(0, task.id, 0),
            task,
            self.calls,
            {},
            is_cut_at_calls=True,
            stop_reason=StopReason.TERMINATED,
            is_success=False,
        )
        return merge_prefixes(split_trajectory(trajectory))

    def differing(self) -> list[int]:
        """The calls of which a row holds something else than the engine saw and sampled, or none at all."""
        trained = {}
        for row in self.rows():
            segment = row.segment
            for turn in row.turn_indices.tolist():
                sampled = np.flatnonzero(segment.turn_ids == turn)
                trained[turn] = (segment.token_ids[: sampled[0]].tolist(), segment.token_ids[sampled].tolist())
        seen = [
            (request.prompt_ids.tolist(), completion.token_ids.tolist())
            for request, completion in zip(self.engine.requests, self.engine.completions, strict=True)
        ]
        return [turn for turn, tokens in enumerate(seen) if trained.get(turn) != tokens]

    def find(self, name: str | None) -> Episode:
        return self.episode

    def begin(self, wishes: dict[str, Any]) -> NoReturn:
        raise ServeError("no.")

    def end(self, name: str, outcome: dict[str, Any]) -> NoReturn:
        raise ServeError("no.")


def perform(
    engine: ScriptedEngine, scene: Callable[[str, httpx.AsyncClient], Awaitable[None]], **options: Any
) -> OneEpisode:
    """Let a scene talk to the endpoint, given its address and a client with the key."""

    async def run() -> OneEpisode:
        host = OneEpisode(engine, **options)
        endpoint = ChatEndpoint(host, token=KEY, model_name="small")
        await endpoint.start()
        headers = {"authorization": f"Bearer {KEY}"}
        try:
            async with httpx.AsyncClient(base_url=endpoint.address, headers=headers, timeout=HANG_S) as client:
                await asyncio.wait_for(scene(endpoint.address, client), HANG_S)
        finally:
            await endpoint.close()
        return host

    return asyncio.run(run())

"""The test engine: replies come from a script, deterministically and without a model.

In: a function from request to reply ids, or a list of replies. Out: completions with made-up but stable log-probs.
It records what it was asked, so that tests can compare segments with what an engine really saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from turnwise.deps import EngineSite
from turnwise.engine import ScriptedEngineParams
from turnwise.infra.digests import complete
from turnwise.types import Alternatives, Completion, FinishReason, FloatArray, GenerateRequest, IntArray, Metrics

Script: TypeAlias = Callable[[GenerateRequest], Iterable[int]]


class ScriptedEngine:
    """Replays a script; `requests` and `completions` hold everything that went through it."""

    Params = ScriptedEngineParams

    @classmethod
    def open(cls, settings: Any, site: EngineSite) -> ScriptedEngine:
        """`engine.type: scripted`: one of the replies of the settings, drawn by the seed of each request."""
        template = site.template
        end = [] if template.end_of_turn_id is None else [template.end_of_turn_id]
        replies = [[*template.encode_text(text).tolist(), *end] for text in settings.replies]
        return cls(
            lambda request: replies[request.seed % len(replies)],
            stop_ids=template.stop_ids,
            policy_version=site.policy_version,
        )

    def __init__(self, script: Script, *, stop_ids: frozenset[int], policy_version: int = 0) -> None:
        self._script = script
        self._stop_ids = stop_ids
        self._policy_version = policy_version
        self.requests: list[GenerateRequest] = []
        self.completions: list[Completion] = []
        self.released: list[str] = []

    @property
    def policy_version(self) -> int:
        return self._policy_version

    async def generate(self, request: GenerateRequest) -> Completion:
        ids = self._cut(list(self._script(request)), request.sampling.max_new_tokens)
        num_scripted = len(ids)
        if request.on_token is not None:
            ids = await self._tell(ids, request.on_token)
        is_closed = len(ids) > 0 and (int(ids[-1]) in self._stop_ids or len(ids) < num_scripted)
        reason = FinishReason.STOP if is_closed else FinishReason.LENGTH
        logprobs = -(0.1 + (ids % 7) / 10).astype(np.float32)
        completion = complete(
            "scripted",
            request,
            ids,
            logprobs,
            reason,
            policy_version=self._policy_version,
            alternatives=_make_up(ids, logprobs, request.alternatives),
        )
        self.requests.append(request)
        self.completions.append(completion)
        return completion

    def release(self, cache_key: str) -> None:
        self.released.append(cache_key)

    def load_weights(self, weights: object, policy_version: int) -> None:
        self._policy_version = policy_version

    async def update_weights(self, weights: object, policy_version: int) -> None:
        self.load_weights(weights, policy_version)

    def state(self) -> Metrics:
        return {"running": 0.0, "waiting": 0.0}

    async def close(self) -> None:
        """There is nothing to close."""

    async def _tell(self, ids: IntArray, hear: Callable[[int], bool]) -> IntArray:
        """One token after the other, so that whoever listens has time to act on each."""
        for place, token in enumerate(ids.tolist(), start=1):
            if token not in self._stop_ids and hear(token):
                return ids[:place]
            await asyncio.sleep(0)
        return ids

    def _cut(self, ids: list[int], max_new_tokens: int) -> IntArray:
        stops = [i for i, token in enumerate(ids) if token in self._stop_ids]
        end = min([stops[0] + 1] if stops else [len(ids)])
        return np.asarray(ids[: min(end, max_new_tokens)], dtype=np.int32)


def _make_up(ids: IntArray, logprobs: FloatArray, num: int) -> Alternatives | None:
    """Each token first, and behind it others from the beginning of the vocabulary, of half the mass left each."""
    if num == 0:
        return None
    left = np.log1p(-np.exp(logprobs))
    others = [[token for token in range(num) if token != said][: num - 1] for said in ids.tolist()]
    shares = left[:, None] - np.log(2.0) * np.arange(1, num)
    return Alternatives(
        token_ids=np.column_stack([ids, np.asarray(others, dtype=np.int32).reshape(len(ids), num - 1)]),
        logprobs=np.column_stack([logprobs, shares]).astype(np.float32),
    )

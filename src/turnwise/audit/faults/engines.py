"""Engines that return, or serve, something else than they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from turnwise.audit.faults.fault import Fault, Stand
from turnwise.infra.digests import complete
from turnwise.protocols import Weights
from turnwise.types import Completion, GenerateRequest


class _Altered(Stand):
    """Changes replies after the engine has sealed them; `seals_again`: as if the engine itself were wrong."""

    def __init__(self, inner: Any, alter: Callable[[Completion], dict[str, Any]], *, seals_again: bool = False) -> None:
        super().__init__(inner)
        self._alter = alter
        self._seals_again = seals_again

    async def generate(self, request: GenerateRequest) -> Completion:
        reply = await self.inner.generate(request)
        altered = replace(reply, **self._alter(reply))
        if not self._seals_again:
            return altered
        parts = altered.token_ids, altered.behavior_logprobs, altered.finish_reason
        return complete("local", request, *parts, policy_version=altered.policy_version)


class _OtherTemperature(Stand):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.inner.generate(replace(request, sampling=replace(request.sampling, temperature=0.7)))


class _AnotherAnswer(Stand):
    """Gives a reply to the one who asked next."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._waiting: Completion | None = None

    async def generate(self, request: GenerateRequest) -> Completion:
        reply = await self.inner.generate(request)
        given, self._waiting = self._waiting or reply, reply
        return given


class _StaleWeights(Stand):
    async def update_weights(self, weights: Weights, policy_version: int) -> None:
        self._first = getattr(self, "_first", None) or {name: t.detach().clone() for name, t in weights.items()}
        await self.inner.update_weights({**weights, **self._stale(weights)}, policy_version)

    def _stale(self, weights: Weights) -> Weights:
        return self._first


class _StaleHead(_StaleWeights):
    def _stale(self, weights: Weights) -> Weights:
        return {name: tensor for name, tensor in self._first.items() if "embed" in name or "lm_head" in name}


class _OtherPrompt(Stand):
    """Reads a prompt whose first token was encoded another way."""

    async def generate(self, request: GenerateRequest) -> Completion:
        ids = request.prompt_ids.copy()
        ids[0] = (ids[0] + 1) % 7
        return await self.inner.generate(replace(request, prompt_ids=ids, cache_key=None))


def _shift(reply: Completion) -> dict[str, Any]:
    return {"behavior_logprobs": np.roll(reply.behavior_logprobs, 1) - np.float32(0.01)}


def _after_top_p(reply: Completion) -> dict[str, Any]:
    return {"behavior_logprobs": np.minimum(reply.behavior_logprobs - np.float32(np.log(0.9)), 0).astype(np.float32)}


def _first_id(reply: Completion) -> dict[str, Any]:
    ids = reply.token_ids.copy()
    ids[0] += 1 if ids[0] == 0 else -1
    return {"token_ids": ids}


FAULTS = (
    Fault(name="wrong_temperature", room="engine", engine=_OtherTemperature),
    Fault(
        name="logprobs_of_another_temperature",
        room="engine",
        engine=lambda e: _Altered(
            e, lambda r: {"behavior_logprobs": r.behavior_logprobs * np.float32(1.1)}, seals_again=True
        ),
    ),
    Fault(name="logprobs_after_top_p", room="engine", engine=lambda e: _Altered(e, _after_top_p, seals_again=True)),
    Fault(name="logprobs_shifted_by_a_token", room="engine", engine=lambda e: _Altered(e, _shift, seals_again=True)),
    Fault(
        name="nan_logprobs",
        room="engine",
        engine=lambda e: _Altered(
            e, lambda r: {"behavior_logprobs": r.behavior_logprobs * np.float32(np.nan)}, seals_again=True
        ),
    ),
    Fault(
        name="missing_end_token",
        room="engine",
        engine=lambda e: _Altered(
            e,
            lambda r: {
                "token_ids": r.token_ids[: max(len(r.token_ids) - 1, 1)],
                "behavior_logprobs": r.behavior_logprobs[: max(len(r.token_ids) - 1, 1)],
            },
        ),
    ),
    Fault(name="reply_tokenised_again", room="context", engine=lambda e: _Altered(e, _first_id)),
    Fault(name="prompt_tokenised_otherwise", room="context", engine=_OtherPrompt),
    Fault(name="answers_of_other_requests", room="engine", engine=_AnotherAnswer),
    Fault(name="stale_engine_weights", room="sync", engine=_StaleWeights),
    Fault(name="tied_head_not_updated", room="sync", engine=_StaleHead),
    Fault(
        name="lora_not_merged_at_sync",
        room="sync",
        overrides=("model.lora={type: lora, rank: 4, alpha: 64}",),
        engine=_StaleWeights,
    ),
)

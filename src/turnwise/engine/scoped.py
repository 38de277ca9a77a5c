"""One engine, several users: each chooses its cache keys as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from turnwise.protocols import Engine
from turnwise.types import Completion, GenerateRequest

_scopes = count()


class ScopedEngine:
    """Passes requests on under cache keys that no other scope uses."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scope = f"{next(_scopes)}:"

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    async def generate(self, request: GenerateRequest) -> Completion:
        cache_key = None if request.cache_key is None else self._scope + request.cache_key
        return await self._engine.generate(replace(request, cache_key=cache_key))

    def release(self, cache_key: str) -> None:
        self._engine.release(self._scope + cache_key)

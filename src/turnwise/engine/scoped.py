"""One engine, several users: each numbers its sessions as if it were alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from turnwise.protocols import Engine
from turnwise.types import Completion, GenerateRequest

_scopes = count()


class ScopedEngine:
    """Passes requests on under session names that no other scope uses."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scope = f"{next(_scopes)}:"

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    async def generate(self, request: GenerateRequest) -> Completion:
        session = None if request.session is None else self._scope + request.session
        return await self._engine.generate(replace(request, session=session))

    def release(self, session: str) -> None:
        self._engine.release(self._scope + session)

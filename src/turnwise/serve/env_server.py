"""OpenEnv server for an environment: one WebSocket session per client, and pages with its schemas.

A session has an environment of its own from its first message, which returns to a pool when the session ends. Invalid
requests are answered with the error codes of the protocol and change nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from turnwise.errors import TurnwiseError
from turnwise.infra.parsing import parse_json

ACTION_FIELD = "message"
OBSERVATION_FIELD = "text"
_TEXT = {"type": "string"}
_NOT_FOUND = {"detail": "Not found. Episodes are played in a WebSocket session at /ws; see /schema and /metadata."}

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Told(NamedTuple):
    """What a world answers: `Told("__G\\nP__", 0.0, False, {"action_is_valid": True})`."""

    text: str
    reward: float | None
    done: bool
    facts: Mapping[str, object]
    """What else is known of the step; beside the protocol, for whoever looks."""


class World(Protocol):
    """What is served."""

    def reset(self, arguments: Mapping[str, object]) -> Told: ...
    def step(self, action: str) -> Told: ...
    def close(self) -> None: ...


class _RefusedError(Exception):
    """A message that means nothing here, in the protocol's words."""

    def __init__(self, code: str, message: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.data: dict[str, object] = {"code": code, "message": message}
        if fields:
            self.data["errors"] = [{"loc": [name], "msg": said} for name, said in fields.items()]


@dataclass(slots=True)
class _Session:
    """Where a player is."""

    world: World
    has_begun: bool = False
    """Before its first reset a world may still be in the episode of an earlier session."""
    state: dict[str, object] = field(default_factory=lambda: {"episode_id": None, "step_count": 0})


class EnvServer:
    """The ASGI application."""

    def __init__(
        self, open_world: Callable[[], World], about: Mapping[str, str], *, max_sessions: int, num_threads: int
    ) -> None:
        self._open_world = open_world
        self._about = about
        self._max_sessions = max_sessions
        self._num_sessions = 0
        self._spare: list[World] = []
        # With one thread no world sees another at work: worlds of other packages may share global generators.
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="worlds")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._show_page(scope, send)
        elif scope["type"] == "websocket":
            await self._meet(scope, receive, send)

    def close(self) -> None:
        self._threads.shutdown()
        for world in self._spare:
            world.close()

    # --- pages ------------------------------------------------------------------------------------------------------

    async def _show_page(self, scope: Scope, send: Send) -> None:
        pages: Mapping[str, object] = {
            "/health": {"status": "healthy"},
            "/metadata": self._about,
            "/schema": _SCHEMA,
        }
        page = pages.get(scope["path"]) if scope["method"] == "GET" else None
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 404 if page is None else 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(page or _NOT_FOUND).encode()})

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def _meet(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        # Only browsers say where a page came from: a page of somebody else's must not play here.
        if scope["path"] != "/ws" or any(name == b"origin" for name, _ in scope["headers"]):
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        if self._num_sessions >= self._max_sessions:
            full = f"all {self._max_sessions} sessions are taken"
            await _say(send, "error", {"code": "CAPACITY_REACHED", "message": full})
            await send({"type": "websocket.close", "code": 1013})
            return
        self._num_sessions += 1
        try:
            await self._play(receive, send)
        finally:
            self._num_sessions -= 1

    async def _play(self, receive: Receive, send: Send) -> None:
        try:
            world = self._spare.pop() if self._spare else await self._do(self._open_world)
        except TurnwiseError as error:
            await _say(send, "error", {"code": "FACTORY_ERROR", "message": str(error)})
            await send({"type": "websocket.close", "code": 1011})
            return
        session = _Session(world)
        try:
            while (event := await receive())["type"] == "websocket.receive":
                try:
                    kind, data = _read(event.get("text"))
                    if kind == "close":
                        await send({"type": "websocket.close", "code": 1000})
                        return
                    await _say(send, *await self._answer(session, kind, data))
                except _RefusedError as error:
                    await _say(send, "error", error.data)
                except TurnwiseError as error:
                    await _say(send, "error", {"code": "EXECUTION_ERROR", "message": str(error)})
        finally:
            self._spare.append(world)

    async def _answer(self, session: _Session, kind: str, data: Mapping[str, object]) -> tuple[str, object]:
        if kind == "state":
            return "state", session.state
        if kind == "reset":
            told = await self._do(session.world.reset, _read_reset(data))
            session.has_begun = True
            session.state = {"episode_id": data.get("episode_id"), "step_count": 0}
        elif kind == "step":
            action = _read_action(data)
            if not session.has_begun:
                raise _RefusedError("EXECUTION_ERROR", "there is no episode yet; send reset first")
            told = await self._do(session.world.step, action)
            session.state = {**session.state, "step_count": _count(session.state) + 1}
        else:
            raise _RefusedError("UNKNOWN_TYPE", f"'{kind}' given; expected reset, step, state or close")
        observation = {OBSERVATION_FIELD: told.text}
        return "observation", {
            "observation": observation,
            "reward": told.reward,
            "done": told.done,
            "metadata": told.facts,
        }

    async def _do(self, work: Callable[..., Any], *arguments: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


async def _say(send: Send, kind: str, data: object) -> None:
    text = json.dumps({"type": kind, "data": data}, default=repr)
    await send({"type": "websocket.send", "text": text})


def _count(state: Mapping[str, object]) -> int:
    count = state["step_count"]
    return count if isinstance(count, int) else 0


def _read(text: str | None) -> tuple[str, Mapping[str, object]]:
    """A message's kind and content."""
    try:
        message = parse_json(text or "")
    except ValueError as error:
        raise _RefusedError("INVALID_JSON", f"no JSON ({type(error).__name__})") from error
    data = message.get("data", {}) if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(data, dict):
        raise _RefusedError("VALIDATION_ERROR", "expected an object with 'type' and an object 'data'")
    return str(message.get("type", "")), data


def _read_reset(data: Mapping[str, object]) -> Mapping[str, object]:
    """Seeds and a split; what else a client sends is for other worlds."""
    problems = {}
    for name in ("seed", "dynamics_seed"):
        given = data.get(name)
        if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
            problems[name] = "expected a whole number from 0 on"
    if not isinstance(data.get("split", ""), str):
        problems["split"] = "expected a text"
    if problems:
        raise _RefusedError("VALIDATION_ERROR", "Invalid message", problems)
    return {name: data[name] for name in ("seed", "dynamics_seed", "split") if data.get(name) is not None}


def _read_action(data: Mapping[str, object]) -> str:
    action = data.get(ACTION_FIELD)
    if not isinstance(action, str):
        raise _RefusedError("VALIDATION_ERROR", "Invalid message", {ACTION_FIELD: "expected a text"})
    return action


_SCHEMA = {
    "action": {
        "title": "Action",
        "type": "object",
        "properties": {ACTION_FIELD: {**_TEXT, "description": "What the player says or does"}},
        "required": [ACTION_FIELD],
    },
    "observation": {
        "title": "Observation",
        "type": "object",
        "properties": {OBSERVATION_FIELD: {**_TEXT, "description": "What the world says"}},
        "required": [OBSERVATION_FIELD],
    },
    "state": {
        "title": "State",
        "type": "object",
        "properties": {"episode_id": {"anyOf": [_TEXT, {"type": "null"}]}, "step_count": {"type": "integer"}},
    },
}

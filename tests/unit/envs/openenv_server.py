"""A small world on a real OpenEnv server, for the tests of its client; run as a program, it prints its port."""

from __future__ import annotations

import socket
from typing import Any
from uuid import uuid4

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field


class Guess(Action):
    message: str = Field(max_length=20)
    strength: int = Field(default=1, le=9)


class Hint(Observation):
    hint: str = ""
    tries: int = 0


class Numbers(Environment):
    """Guess a number from 0 to 9, which depends on the seed; `fail` breaks the world."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._number, self._tries = 0, 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, low: int = 0, **_: Any) -> Hint:
        self._state = State(episode_id=episode_id or str(uuid4()))
        self._number, self._tries = max(low, (seed or 0) * 7 % 10), 0
        return Hint(hint=f"a number from {low} to 9")

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Hint:
        if action.message == "fail":
            raise RuntimeError("the world broke")
        self._tries += 1
        try:
            guess = int(action.message)
        except ValueError:
            return Hint(hint="no number", tries=self._tries)
        if guess == self._number:
            return Hint(hint="right", tries=self._tries, reward=float(action.strength), done=True)
        return Hint(hint="higher" if guess < self._number else "lower", tries=self._tries, reward=0)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Numbers, Guess, Hint, max_concurrent_envs=4)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)  # noqa: T201
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])

"""`turnwise serve-env`: an environment of ours for whoever speaks OpenEnv's protocol.

In: the name of an environment and its settings. Out: a server on this machine until it is interrupted. It refuses to
know its clients; a new session gets a world of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from turnwise.config.settings import require_package
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.isolation import IsolatedEnv
from turnwise.envs.safe_calls import close_env, closing_env, describe_env, reset_env, step_env
from turnwise.errors import ConfigError
from turnwise.serve.env_server import EnvServer, Told

_MAX_MESSAGE_BYTES = 1 << 20
_TIME_LIMIT_S = 60.0
"""Of one call of an environment that runs under another Python."""


class ServedWorld:
    """An environment in the words of the server."""

    def __init__(self, env: BaseEnv) -> None:
        self._env = env

    def reset(self, arguments: Mapping[str, Any]) -> Told:
        return Told(reset_env(self._env, **arguments), None, False, {})

    def step(self, action: str) -> Told:
        result = step_env(self._env, action)
        facts = {
            "action_is_valid": result.is_valid,
            "action_is_effective": result.is_effective,
            "truncated": result.truncated,
            "success": result.is_success,
        }
        return Told(result.text, result.reward, result.done, facts)

    def close(self) -> None:
        close_env(self._env)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEnv:
    """What is served, and where."""

    name: str
    params: Mapping[str, object]
    python: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    max_sessions: int = 64

    def make(self) -> BaseEnv:
        if self.python is None:
            return make_env(self.name, **self.params)
        return IsolatedEnv(self.name, self.params, time_limit_s=_TIME_LIMIT_S, python=self.python)


def serve_env(served: ServedEnv, console: Console, *, started: Callable[[str, Any], None] | None = None) -> None:
    """Serve until interrupted; `started` is told the address, and the server that can be asked to end."""
    if served.max_sessions < 1:
        raise ConfigError(f"--max-sessions: {served.max_sessions} given; expected 1 or more.")
    uvicorn: Any = require_package("uvicorn", extra="serve", asked_by="turnwise serve-env")
    require_package("websockets", extra="openenv", asked_by="turnwise serve-env")
    # A wrong name or setting is told before anyone is let in.
    with closing_env(served.make()) as env:
        reset_env(env, 0)
        about = {"name": served.name, "description": describe_env(env).instructions}
        num_threads = served.max_sessions if env.is_slow else 1
    app = EnvServer(
        lambda: ServedWorld(served.make()), about, max_sessions=served.max_sessions, num_threads=num_threads
    )
    config = uvicorn.Config(app, log_level="warning", lifespan="off", ws_max_size=_MAX_MESSAGE_BYTES)
    with _listen(served) as listening:
        host, port = listening.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        console.print(f"'{served.name}' is at {address}; play it with env.type=openenv:{address}", markup=False)
        server = uvicorn.Server(config)
        if started is not None:
            started(address, server)
        try:
            asyncio.run(server.serve(sockets=[listening]))
        except KeyboardInterrupt:
            console.print("No longer served.")
        finally:
            app.close()


def _listen(served: ServedEnv) -> socket.socket:
    family = socket.AF_INET6 if ":" in served.host else socket.AF_INET
    try:
        return socket.create_server((served.host, served.port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {served.host} --port {served.port}: nothing can listen there ({error}). Choose another, or leave "
            "--port out for a free one."
        ) from error

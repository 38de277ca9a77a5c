"""`turnwise serve` and `turnwise serve-env`: a policy or an environment over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from turnwise.commands import OVERRIDES_HELP, EnvName, Option, Port, Python, Target, command
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.envs.base import BaseEnv
    from turnwise.serve.env_server import Told

_MAX_MESSAGE_BYTES = 1 << 20
_TIME_LIMIT_S = 60.0
"""Of one call of an environment that runs under another Python."""


@command(
    "serve",
    help="Serve a policy to agents that use the API of OpenAI or Anthropic, and record their episodes",
    epilog="the token is generated at start, or read from TURNWISE_SERVE_TOKEN in the environment\n" + OVERRIDES_HELP,
)
def serve(
    target: Annotated[str, Target("TARGET", "run directory, model or recipe", complete="files")],
    port: Port = 0,
    host: Annotated[
        str,
        Option(
            "ADDRESS",
            "interface to listen on, such as 0.0.0.0 for agents in containers (default: this machine only)",
        ),
    ] = "127.0.0.1",
    recipe: Annotated[
        str | None,
        Option("RECIPE", "recipe with whose settings a model is served (default: as it is)", complete="recipes"),
    ] = None,
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    from turnwise.run import serving

    serving.serve(target, Console(), port=port, host=host, recipe=recipe, overrides=list(overrides))
    return 0


@command(
    "serve-env",
    help="Serve an environment to clients of the OpenEnv protocol",
    epilog="environment settings: key=value, for example\n  turnwise serve-env frozen_lake size=3 --port 8000\n",
)
def serve_env(
    env: EnvName,
    host: Annotated[
        str, Option("H", "interface to listen on, without a token (default: this machine only)")
    ] = "127.0.0.1",
    port: Port = 0,
    max_sessions: Annotated[int, Option(help="maximum number of concurrent sessions")] = 64,
    python: Python = None,
    overrides: Sequence[str] = (),
) -> int:
    from rich.console import Console

    from turnwise.config.load import parse_params

    params = parse_params(list(overrides))
    served = ServedEnv(name=env, params=params, python=python, host=host, port=port, max_sessions=max_sessions)
    run_env_server(served, Console())
    return 0


class _EnvSession:
    """An environment with the methods that the server calls."""

    def __init__(self, env: BaseEnv) -> None:
        self._env = env

    def reset(self, arguments: Mapping[str, Any]) -> Told:
        from turnwise.envs.safe_calls import reset_env
        from turnwise.serve.env_server import Told

        return Told(reset_env(self._env, **arguments), None, False, {})

    def step(self, action: str) -> Told:
        from turnwise.envs.safe_calls import step_env
        from turnwise.serve.env_server import Told

        result = step_env(self._env, action)
        facts = {
            "action_is_valid": result.is_valid,
            "action_is_effective": result.is_effective,
            "truncated": result.truncated,
            "success": result.is_success,
        }
        return Told(result.text, result.reward, result.done, facts)

    def close(self) -> None:
        from turnwise.envs.safe_calls import close_env

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
        from turnwise.envs.base import make_env
        from turnwise.envs.isolation import IsolatedEnv

        if self.python is None:
            return make_env(self.name, **self.params)
        return IsolatedEnv(self.name, self.params, time_limit_s=_TIME_LIMIT_S, python=self.python)


def run_env_server(served: ServedEnv, console: Console, *, started: Callable[[str, Any], None] | None = None) -> None:
    """Serve until interrupted; `started` receives the address, and the server that can be asked to end."""
    from turnwise.config.settings import require_package
    from turnwise.envs.safe_calls import closing_env, describe_env, reset_env
    from turnwise.serve.env_server import EnvServer

    if served.max_sessions < 1:
        raise ConfigError(f"--max-sessions must be at least 1, got {served.max_sessions}.")
    uvicorn: Any = require_package("uvicorn", extra="serve", asked_by="turnwise serve-env")
    require_package("websockets", extra="openenv", asked_by="turnwise serve-env")
    # A wrong name or setting is reported before the first client connects.
    with closing_env(served.make()) as env:
        reset_env(env, 0)
        about = {"name": served.name, "description": describe_env(env).instructions}
        num_threads = served.max_sessions if env.is_slow else 1
    app = EnvServer(
        lambda: _EnvSession(served.make()), about, max_sessions=served.max_sessions, num_threads=num_threads
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
            console.print("Server stopped.")
        finally:
            app.close()


def _listen(served: ServedEnv) -> socket.socket:
    family = socket.AF_INET6 if ":" in served.host else socket.AF_INET
    try:
        return socket.create_server((served.host, served.port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--host {served.host} --port {served.port}: cannot listen there ({error}). Choose another, or omit --port "
            "for a free one."
        ) from error

"""OpenEnv's protocol: what a server's actions look like over HTTP, and one WebSocket session per player.

In come an address, a time limit and messages; out come checked replies. Whatever goes wrong on the way, a server that
is gone, silence, a reply that is none, is an `EnvError` with its cause. It refuses to know what observations and
actions mean. It speaks the protocol itself because the package that defines it brings half a gigabyte of servers.
"""

from __future__ import annotations

import json
import reprlib
import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from turnwise.config.settings import require_package
from turnwise.errors import ConfigError, EnvError
from turnwise.infra.parsing import parse_json

_SCHEMES = {"http": ("http", "ws"), "ws": ("http", "ws"), "https": ("https", "wss"), "wss": ("https", "wss")}
_MAX_MESSAGE_BYTES = 16 << 20
_FAREWELL_S = 2.0
"""For a server to free its session; whoever comes next then finds a place."""
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: `Address("http://localhost:8000/schema", "ws://localhost:8000/ws", is_local=True)`."""

    schema: str
    session: str
    is_local: bool
    """Proxies are for elsewhere."""


class Reply(NamedTuple):
    """What a server answers to `reset` and `step`."""

    observation: Mapping[str, Any]
    reward: object
    done: bool
    is_success: bool | None
    """What the server says of it under `success` in its metadata; None: nothing, as most do."""


class ActionRefusedError(EnvError):
    """The action does not fit the server's description of actions; nothing has happened."""

    def __init__(self, message: str, fields: frozenset[str]) -> None:
        super().__init__(message)
        self.fields = fields
        """Those that the server objects to."""


def parse_address(url: str) -> Address:
    """The two ends of a server; without a scheme it is http."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        http, ws = _SCHEMES[parts.scheme]
        place = parts.netloc + parts.path.rstrip("/")
        if not parts.hostname or parts.port == 0:
            raise ValueError
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"env.type: '{url}' is no address of an OpenEnv server; expected for example "
            "'openenv:http://localhost:8000', with http, https, ws or wss."
        ) from error
    return Address(f"{http}://{place}/schema", f"{ws}://{place}/ws", _is_local(parts.hostname))


def fetch_schema(address: Address, label: str, time_limit_s: float) -> Mapping[str, Mapping[str, Any]]:
    """The server's JSON schemas under `action` and `observation`; a server that does not tell them is refused."""
    opener = build_opener(ProxyHandler({})) if address.is_local else build_opener()
    try:
        with opener.open(address.schema, timeout=time_limit_s) as response:
            schema = parse_json(response.read(_MAX_MESSAGE_BYTES))
    except (OSError, HTTPException) as error:
        raise ConfigError(
            f"env.type: '{label}': no OpenEnv server answers at {address.schema} ({_cause(error)}). Start the server, "
            "or correct the address."
        ) from error
    except ValueError:
        schema = None
    if not isinstance(schema, dict) or not all(isinstance(schema.get(key), dict) for key in ("action", "observation")):
        raise ConfigError(
            f"env.type: '{label}': {address.schema} answers, and not as an OpenEnv server does: expected JSON with "
            "'action' and 'observation'. Correct the address."
        )
    return schema


class Session:
    """One world on the server, as long as the connection lasts."""

    def __init__(self, address: Address, label: str, time_limit_s: float) -> None:
        self._label = label
        self._time_limit_s = time_limit_s
        client = require_package("websockets.sync.client", extra="openenv", asked_by=label)
        exceptions = require_package("websockets.exceptions", extra="openenv", asked_by=label)
        self._broken = (OSError, EOFError, ValueError, exceptions.WebSocketException)
        self._closed = exceptions.ConnectionClosed
        line = ExitStack()
        try:
            self._connection = line.enter_context(
                client.connect(
                    address.session,
                    open_timeout=time_limit_s,
                    close_timeout=_CLOSE_S,
                    # A server that thinks for long is no dead server; the time limit decides.
                    ping_interval=None,
                    max_size=_MAX_MESSAGE_BYTES,
                    proxy=None if address.is_local else True,
                )
            )
        except self._broken as error:
            raise EnvError(f"{label}: no session at {address.session} ({_cause(error)}).") from error
        # Also where an environment is thrown away without a close: servers count their sessions.
        self.close = weakref.finalize(self, _leave, line, self._connection, self._broken)

    def reset(self, arguments: Mapping[str, object]) -> Reply:
        return self._ask("reset", arguments)

    def step(self, action: Mapping[str, object]) -> Reply:
        return self._ask("step", action)

    def _ask(self, kind: str, data: Mapping[str, object]) -> Reply:
        try:
            # A server without a free place says so and hangs up, unasked: its words are still there to be read.
            with suppress(self._closed):
                self._connection.send(json.dumps({"type": kind, "data": data}))
            text = self._connection.recv(timeout=self._time_limit_s)
        except TimeoutError as error:
            raise EnvError(
                f"{self._label}: no answer to '{kind}' within env.time_limit_s = {self._time_limit_s:g}."
            ) from error
        except self._broken as error:
            raise EnvError(f"{self._label}: the connection broke in '{kind}' ({_cause(error)}).") from error
        return self._read(text, kind)

    def _read(self, text: str | bytes, kind: str) -> Reply:
        try:
            message = parse_json(text)
        except ValueError:
            message = None
        data = message.get("data") if isinstance(message, dict) else None
        if isinstance(message, dict) and isinstance(data, dict):
            if message.get("type") == "error":
                raise self._failure(kind, data)
            observation, done = data.get("observation"), data.get("done")
            if message.get("type") == "observation" and isinstance(observation, dict) and isinstance(done, bool):
                metadata = data.get("metadata")
                said = metadata.get("success") if isinstance(metadata, dict) else None
                return Reply(observation, data.get("reward"), done, said if isinstance(said, bool) else None)
        raise EnvError(
            f"{self._label}: the server answered '{kind}' with {reprlib.repr(text)}; expected an observation with "
            "'observation', 'reward' and 'done'."
        )

    def _failure(self, kind: str, data: Mapping[str, Any]) -> EnvError:
        code, message = data.get("code"), data.get("message")
        if code == "VALIDATION_ERROR":
            complaints = _read_complaints(data)
            told = "; ".join(f"{field}: {text}" for field, text in complaints.items()) or message
            return ActionRefusedError(f"{self._label}: the server refuses '{kind}': {told}", frozenset(complaints))
        hint = ""
        if code == "CAPACITY_REACHED":
            hint = " Raise the server's max_concurrent_envs to the number of episodes that play at once."
        return EnvError(f"{self._label}: the server failed in '{kind}' ({code}): {message}{hint}")


def _leave(line: ExitStack, connection: Any, broken: tuple[type[Exception], ...]) -> None:
    with suppress(*broken), line:
        connection.send('{"type": "close"}')
        connection.recv(timeout=_FAREWELL_S)


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_complaints(data: Mapping[str, Any]) -> dict[str, str]:
    """What the server says of each field; pydantic's list, where it is one."""
    errors = data.get("errors")
    complaints = {}
    for error in errors if isinstance(errors, list) else []:
        place = error.get("loc") if isinstance(error, dict) else None
        if isinstance(place, list) and place:
            complaints[str(place[0])] = str(error.get("msg"))
    return complaints


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

"""Worlds behind an OpenEnv server: `openenv:URL`, such as `openenv:http://localhost:8000`.

In comes the address of a server; out comes an environment class that plays there. Replies go into one text field of the
server's action; the fields of its observation are told as text. It refuses to know what the world is about, and the
protocol; `openenv_client.py` does.
"""

from __future__ import annotations

import json
import reprlib
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from pydantic import Field

from turnwise.config.settings import Settings, require_package
from turnwise.envs.adapters.external import (
    ExternalEnv,
    Option,
    define_env,
    is_valid_reply,
    make_info,
    require_env_id,
    reward_value,
    split_seed,
)
from turnwise.errors import ConfigError, EnvError, TurnwiseError
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


class InvalidActionError(EnvError):
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
            return InvalidActionError(f"{self._label}: the server refuses '{kind}': {told}", frozenset(complaints))
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


_BESIDE = {"done", "reward", "metadata"}
"""Fields of every observation that are sent beside it, or not at all."""


class OpenEnvParams(Settings):
    """The settings of a world behind an OpenEnv server."""

    options: dict[str, Option] = Field(default={})
    """Passed to the server's `reset`, beside the seed: `{difficulty: easy}`."""
    action_field: str = "message"
    """The field of the server's action that takes the reply."""
    action_constants: dict[str, Option] = Field(default={})
    """Further fields of every action: `{game_name: catch}`."""
    observation_field: str | None = None
    """The field of the server's observation that is told; null: all of them, each behind its name."""
    rules: str = ""
    """What the world is about, for the instructions; it does not say so itself."""
    success_above: float = 0.0
    """An episode that ends with more reward than this in all counts as a success, where the server does not say it."""
    time_limit_s: float = Field(default=60.0, gt=0)
    """Longest wait for a connection and for each answer; then the episode ends as failed."""


class OpenEnvEnv(ExternalEnv):
    """One session on a server, from reset to the end of the episode."""

    Params: ClassVar[type[Settings]] = OpenEnvParams
    address: ClassVar[Address]
    is_slow = True

    params: OpenEnvParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self._session: Session | None = None
        self._text = ""
        self._earned = 0.0
        self._check_fields(fetch_schema(self.address, self.label(), self.params.time_limit_s))

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        seed, _ = self._begin(seed, split, dynamics_seed)
        self._phase = "new"
        self._earned = 0.0
        try:
            if self._session is None:
                self._session = Session(self.address, self.label(), self.params.time_limit_s)
            reply = self._session.reset({**self.params.options, "seed": split_seed(seed, split)})
            if reply.done:
                raise EnvError(f"{self.label()}: the episode is over before the first action.")
            self._text = self._tell(reply)
        except TurnwiseError:
            self.close()
            raise
        self._phase = "playing"
        return self._text

    def step(self, action: str) -> tuple[str, Any, bool, dict[str, object]]:
        self._require_playing()
        if not is_valid_reply(action):
            return self._refuse()
        assert self._session is not None
        before = self._text
        try:
            reply = self._session.step({**self.params.action_constants, self.params.action_field: action})
            self._text = self._tell(reply)
        except EnvError as error:
            if isinstance(error, InvalidActionError) and error.fields <= {self.params.action_field}:
                return self._refuse()
            # A late answer would be taken for that to the next question.
            self._end()
            raise
        reward = 0.0 if reply.reward is None else reply.reward
        self._earned += reward_value(reward)
        if reply.done:
            self._end()
        is_paid = reply.done and self._earned > self.params.success_above
        success = is_paid if reply.is_success is None else reply.is_success
        info = make_info(success=success, is_valid=True, is_effective=reply.done or before != self._text)
        return self._text, reward, reply.done, info

    def render(self) -> str:
        return self._text

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    @property
    def instructions(self) -> str:
        return self.params.rules

    def _end(self) -> None:
        """The session goes with the episode: a server has places for few."""
        self._phase = "over"
        self.close()

    def _refuse(self) -> tuple[str, float, bool, dict[str, object]]:
        return self._text, 0.0, False, make_info(success=False, is_valid=False, is_effective=False)

    def _tell(self, reply: Reply) -> str:
        fields, chosen = reply.observation, self.params.observation_field
        if chosen is not None:
            if chosen not in fields:
                raise EnvError(
                    f"{self.label()}: env.observation_field is '{chosen}', and an observation came with "
                    f"{_listed(fields)}."
                )
            return _as_text(fields[chosen])
        told = {name: _as_text(value) for name, value in fields.items() if value is not None}
        return "\n".join(told.values() if len(told) == 1 else (f"{name}: {text}" for name, text in told.items()))

    def _check_fields(self, schema: Mapping[str, Mapping[str, Any]]) -> None:
        """Against what the server says of itself; a union of several kinds of actions tells no fields."""
        known, field = schema["action"].get("properties"), self.params.action_field
        given = {field, *self.params.action_constants}
        if isinstance(known, dict):
            if unknown := given - known.keys():
                key = "action_field" if field in unknown else "action_constants"
                raise ConfigError(
                    f"env.{key}: {_listed(unknown)} given; an action of {self.label()} has {_listed(known)}."
                )
            if missing := set(schema["action"].get("required", ())) - given:
                raise ConfigError(
                    f"env.action_constants: {_listed(given)} given; an action of {self.label()} also needs "
                    f"{_listed(missing)}."
                )
        told, chosen = schema["observation"].get("properties"), self.params.observation_field
        if isinstance(told, dict) and chosen is not None and chosen not in (names := told.keys() - _BESIDE):
            raise ConfigError(
                f"env.observation_field: '{chosen}' given; an observation of {self.label()} has {_listed(names)}."
            )


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no fields"


@lru_cache
def adapt_openenv(url: str) -> type[OpenEnvEnv]:
    """The environment class of an address."""
    require_env_id(url, "openenv:http://localhost:8000")
    name = f"openenv:{url}"
    address = parse_address(url)
    require_package("websockets.sync.client", extra="openenv", asked_by=name)
    return define_env(OpenEnvEnv, name=name, address=address)

"""Worlds behind an OpenEnv server: `openenv:URL`, such as `openenv:http://localhost:8000`.

In comes the address of a server; out comes an environment class that plays there. Replies go into one text field of the
server's action; the fields of its observation are told as text. It refuses to know what the world is about, and the
protocol; `openenv_client.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, cast

from pydantic import Field

from turnwise.config.settings import Settings, require_package
from turnwise.envs.adapters.foreign import (
    ForeignWorld,
    Option,
    foreign_info,
    is_playable,
    require_rest,
    seed_for,
    worth_of,
)
from turnwise.envs.adapters.openenv_client import (
    ActionRefusedError,
    Address,
    Reply,
    Session,
    fetch_schema,
    parse_address,
)
from turnwise.errors import ConfigError, EnvError, TurnwiseError

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


class OpenEnvWorld(ForeignWorld):
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
            reply = self._session.reset({**self.params.options, "seed": seed_for(seed, split)})
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
        if not is_playable(action):
            return self._refuse()
        assert self._session is not None
        before = self._text
        try:
            reply = self._session.step({**self.params.action_constants, self.params.action_field: action})
            self._text = self._tell(reply)
        except EnvError as error:
            if isinstance(error, ActionRefusedError) and error.fields <= {self.params.action_field}:
                return self._refuse()
            # A late answer would be taken for that to the next question.
            self._end()
            raise
        reward = 0.0 if reply.reward is None else reply.reward
        self._earned += worth_of(reward)
        if reply.done:
            self._end()
        is_paid = reply.done and self._earned > self.params.success_above
        success = is_paid if reply.is_success is None else reply.is_success
        info = foreign_info(success=success, is_valid=True, is_effective=reply.done or before != self._text)
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
        return self._text, 0.0, False, foreign_info(success=False, is_valid=False, is_effective=False)

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
def adapt_openenv(url: str) -> type[OpenEnvWorld]:
    """The environment class of an address."""
    require_rest(url, "openenv:http://localhost:8000")
    name = f"openenv:{url}"
    address = parse_address(url)
    require_package("websockets.sync.client", extra="openenv", asked_by=name)
    members = {"name": name, "address": address, "__module__": __name__}
    return cast("type[OpenEnvWorld]", type("OpenEnvWorld", (OpenEnvWorld,), members))

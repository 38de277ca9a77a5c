"""An environment in a Ray actor: heavy ones are spread over the machines of a cluster, away from the explorer.

In and out as in `isolation.py`, and the two sides speak JSON here too. An actor that hangs or dies ends one episode,
and is replaced at the next reset. It refuses to know where Ray puts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from turnwise.config.settings import require_package
from turnwise.envs.isolation import RemoteEnv
from turnwise.envs.make import make_env
from turnwise.envs.served import answer_call, introduce, tell_error
from turnwise.errors import EnvError
from turnwise.infra.parsing import parse_json

_needed = partial(require_package, extra="ray", asked_by="rollout.isolation.type: 'ray'")


class EnvActor:
    """What is at the other end."""

    def open(self, name: str, params: Mapping[str, Any]) -> str:
        try:
            self._env = make_env(name, **params)
            return introduce(self._env)
        except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
            return tell_error(error)

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return answer_call(self._env, method, args, kwargs)


class RayEnv(RemoteEnv):
    """In an actor, anywhere in the cluster."""

    def __init__(self, name: str, params: Mapping[str, object], *, time_limit_s: float, cpus: float) -> None:
        self._cpus = cpus
        self._actor: Any = None
        super().__init__(name, params, time_limit_s=time_limit_s)

    def close(self) -> None:
        if self._actor is not None:
            _needed("ray").kill(self._actor)
            self._actor = None

    def _is_alive(self) -> bool:
        return self._actor is not None

    def _start(self) -> None:
        made: Any = _needed("ray").remote(EnvActor).options(num_cpus=self._cpus, scheduling_strategy="SPREAD")
        self._actor = made.remote()
        asked = self._actor.open.remote(self._target, self._settings)
        hint = f"the cluster may have no room for another {self._cpus:g} CPU (rollout.isolation.cpus)"
        self._wait("start", asked, self._start_limit_s, hint)

    def _call(self, method: str, *args: object, **kwargs: object) -> Any:
        if self._actor is None:
            raise EnvError(f"{self._target}: the episode ended with its actor; call reset.")
        return self._wait(method, self._actor.call.remote(method, args, kwargs), self._time_limit_s)

    def _wait(self, method: str, asked: Any, limit_s: float, hint: str = "") -> Any:
        ray, failures = _needed("ray"), _needed("ray.exceptions")
        try:
            answer = parse_json(ray.get(asked, timeout=limit_s))
        except failures.GetTimeoutError:
            self.close()
            raise EnvError(
                f"{self._target}.{method} took longer than {limit_s:g} s (rollout.isolation.time_limit_s); {hint}"
                if hint
                else f"{self._target}.{method} took longer than rollout.isolation.time_limit_s = {limit_s:g}."
            ) from None
        except failures.RayError as error:
            self.close()
            raise EnvError(
                f"{self._target}.{method}: the environment's actor is gone ({type(error).__name__})."
            ) from None
        return self._read(answer)


def is_in_actor() -> bool:
    """Whether this process is a part of a cluster: elsewhere, such as for a look at the settings, there is none yet."""
    ray: Any = _needed("ray")
    return bool(ray.is_initialized()) and ray.get_runtime_context().get_actor_id() is not None

"""An environment in a process of its own: whatever it does there, hang, crash, leak or exit, ends one episode.

In come an environment's name and settings, a time limit and a memory limit; out comes an environment that is played
like any other, snapshots left out: a state would have to be unpickled. Each has its own process, which lives as long as
it behaves; one that was killed is replaced at the next reset. The two sides speak JSON: nothing that the process sends
is ever unpickled. It refuses to know who plays.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from turnwise.config.trust import refuse_stranger
from turnwise.envs.base import BaseEnv
from turnwise.envs.check import Check, CheckReport
from turnwise.envs.other_python import OtherProcess, check_under, find_python
from turnwise.envs.served import OUT_OF_MEMORY, serve
from turnwise.errors import ConfigError, EnvError, TaskError
from turnwise.infra.parsing import parse_json

_START_LIMIT_S = 180.0
"""A process may import a large package before its first answer."""
_DEATH_LIMIT_S = 10.0
"""A process that has hung up may take a moment to be gone."""
_CHECK_LIMIT_S = 900.0
"""All checks of an environment together; those of a slow one take minutes."""
_MAX_ANSWER_BYTES = 64 << 20
_PASSED_ON = {error.__name__: error for error in (ConfigError, TaskError)}
"""Mistakes of the user, which stay what they are; every other exception is the environment's failure."""


class RemoteEnv(BaseEnv, ABC):
    """The environment `name` with settings `params`, played elsewhere; a subclass says where."""

    is_slow = True

    def __init__(self, name: str, params: Mapping[str, object], *, time_limit_s: float) -> None:
        super().__init__()
        self._target = name
        self._settings = dict(params)
        self._time_limit_s = time_limit_s
        self._about: Mapping[str, Any] = {}
        self._start()
        self.has_oracle = bool(self._about["has_oracle"])

    @abstractmethod
    def _start(self) -> None:
        """Make the environment there, and hear what it says of itself."""

    @abstractmethod
    def _is_alive(self) -> bool: ...

    @abstractmethod
    def _call(self, method: str, *args: object, **kwargs: object) -> Any: ...

    @property
    def _start_limit_s(self) -> float:
        return max(self._time_limit_s, _START_LIMIT_S)

    def _read(self, answer: Mapping[str, Any]) -> Any:
        """What a call returned, or raised."""
        if "error" in answer:
            kind, message = answer["error"]
            raise _PASSED_ON.get(kind, EnvError)(message)
        self._about = answer.get("about", self._about)
        return answer["result"]

    # --- the calls of an environment ------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        if not self._is_alive():
            self._start()
        return self._call("reset", seed, split=split, dynamics_seed=dynamics_seed)

    def step(self, action: str) -> tuple[Any, ...]:
        return tuple(self._call("step", action))

    def render(self) -> str:
        return self._call("render")

    def oracle(self) -> str:
        return self._call("oracle")

    def admissible_actions(self) -> list[str] | None:
        return self._call("admissible_actions")

    def num_tasks(self, split: str = "train") -> int | None:
        return self._call("num_tasks", split)

    @property
    def action_names(self) -> tuple[str, ...] | None:
        names = self._about["action_names"]
        return None if names is None else tuple(names)

    @property
    def instructions(self) -> str:
        return self._about["instructions"]

    @property
    def legend(self) -> str:
        return self._about["legend"]

    @property
    def example(self) -> str:
        return self._about["example"]


def check_elsewhere(
    python: str, name: str, params: Mapping[str, object], *, num_episodes: int | None = None
) -> CheckReport:
    """`check_env` under another Python."""
    rows = check_under(python, name, params, num_episodes=num_episodes, limit_s=_CHECK_LIMIT_S)
    return CheckReport(tuple(Check(*row) for row in rows))


class IsolatedEnv(RemoteEnv):
    """In a process of this machine, under this Python or, with the path of its program, under another."""

    def __init__(
        self,
        name: str,
        params: Mapping[str, object],
        *,
        time_limit_s: float,
        max_memory_mb: int | None = None,
        python: str | None = None,
    ) -> None:
        self._max_memory_mb = max_memory_mb
        self._python = python
        self._process: BaseProcess | OtherProcess | None = None
        self._pipe: Connection | None = None
        super().__init__(name, params, time_limit_s=time_limit_s)

    def close(self) -> None:
        if self._process is not None:
            self._end()

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def _start(self) -> None:
        # A server that forks is quick and, unlike this process, has no threads that a fork would tear apart.
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        arguments = (self._target, self._settings, self._max_memory_mb)
        if self._python is None:
            self._process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
            self._process.start()
        else:
            refuse_stranger(f"rollout.isolation.python: {self._python}")
            self._process = find_python(self._python).start("serve", theirs, arguments, self._start_limit_s)
        theirs.close()
        self._wait("start", self._start_limit_s)

    def _call(self, method: str, *args: object, **kwargs: object) -> Any:
        if self._pipe is None:
            raise EnvError(f"{self._target}: the episode ended with its process; call reset.")
        try:
            self._pipe.send_bytes(json.dumps([method, args, kwargs]).encode())
        except OSError:
            raise self._died(method) from None
        return self._wait(method, self._time_limit_s)

    def _wait(self, method: str, limit_s: float) -> Any:
        assert self._pipe is not None
        try:
            if not self._pipe.poll(limit_s):
                self._end()
                raise EnvError(
                    f"{self._target}.{method} took longer than rollout.isolation.time_limit_s = {limit_s:g}."
                )
            answer = parse_json(self._pipe.recv_bytes(_MAX_ANSWER_BYTES))
        except (EOFError, OSError, ValueError):
            raise self._died(method) from None
        return self._read(answer)

    def _died(self, method: str) -> EnvError:
        """What is left to say of a process that went away while it was asked something."""
        assert self._process is not None
        self._process.join(_DEATH_LIMIT_S)
        code = self._process.exitcode
        self._end()
        if code == OUT_OF_MEMORY:
            return EnvError(f"{self._target}.{method}: the environment's process had no memory left.")
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return EnvError(f"{self._target}.{method}: the environment's process ended with {cause}.")

    def _end(self) -> None:
        assert self._process is not None
        assert self._pipe is not None
        self._process.kill()
        self._process.join(_DEATH_LIMIT_S)
        self._pipe.close()
        self._process = self._pipe = None

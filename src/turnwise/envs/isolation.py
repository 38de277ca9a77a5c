"""An environment in a process of its own: whatever it does there, hang, crash, leak or exit, ends one episode.

In come an environment's name and settings, a time limit and a memory limit; out comes an environment that is played
like any other, snapshots left out: a state would have to be unpickled. Each has its own process, which lives as long as
it behaves; one that was killed is replaced at the next reset. The two sides speak JSON: nothing that the process sends
is ever unpickled. It refuses to know who plays.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from turnwise.envs.base import BaseEnv
from turnwise.envs.make import make_env
from turnwise.errors import ConfigError, EnvError, TaskError, TurnwiseError
from turnwise.floor import outsiders

_START_LIMIT_S = 60.0
"""A process may import a large package before its first answer."""
_DEATH_LIMIT_S = 10.0
"""A process that has hung up may take a moment to be gone."""
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


class IsolatedEnv(RemoteEnv):
    """In a process of this machine."""

    def __init__(
        self, name: str, params: Mapping[str, object], *, time_limit_s: float, max_memory_mb: int | None = None
    ) -> None:
        self._max_memory_mb = max_memory_mb
        self._process: BaseProcess | None = None
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
        arguments = (theirs, self._target, self._settings, self._max_memory_mb)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
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
            answer = json.loads(self._pipe.recv_bytes(_MAX_ANSWER_BYTES))
        except (EOFError, OSError, ValueError):
            raise self._died(method) from None
        return self._read(answer)

    def _died(self, method: str) -> EnvError:
        """What is left to say of a process that went away while it was asked something."""
        assert self._process is not None
        self._process.join(_DEATH_LIMIT_S)
        code = self._process.exitcode
        self._end()
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return EnvError(f"{self._target}.{method}: the environment's process ended with {cause}.")

    def _end(self) -> None:
        assert self._process is not None
        assert self._pipe is not None
        self._process.kill()
        self._process.join(_DEATH_LIMIT_S)
        self._pipe.close()
        self._process = self._pipe = None


# --- inside the process -----------------------------------------------------------------------------------------------


def _serve(pipe: Connection, name: str, params: Mapping[str, object], max_memory_mb: int | None) -> None:
    """Build the environment, then answer calls until the other side is gone."""
    # Ctrl-C is for the parent, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        env = make_env(name, **params)
        if max_memory_mb is not None:
            _limit_memory(max_memory_mb)
        pipe.send_bytes(introduce(env).encode())
    except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
        pipe.send_bytes(tell_error(error).encode())
        return
    while True:
        try:
            method, args, kwargs = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        pipe.send_bytes(answer_call(env, method, args, kwargs).encode())


def introduce(env: BaseEnv) -> str:
    """The first answer of an environment, in JSON."""
    return _write({"result": None, "about": _describe(env, is_new=True)})


def answer_call(env: BaseEnv, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What a call returned or raised, in JSON."""
    try:
        return _write({"result": getattr(env, method)(*args, **kwargs), "about": _describe(env)})
    except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
        return tell_error(error)


def tell_error(error: BaseException) -> str:
    return json.dumps({"error": _name_error(error)})


def _describe(env: BaseEnv, *, is_new: bool = False) -> dict[str, object]:
    """What an environment says about itself; before its first reset it may not know yet."""
    about: dict[str, object] = {"has_oracle": env.has_oracle, "action_names": None}
    about |= dict.fromkeys(("instructions", "legend", "example"), "")
    if is_new:
        return about
    texts = {"instructions": env.instructions, "legend": env.legend, "example": env.example}
    return about | texts | {"action_names": env.action_names}


def _limit_memory(max_memory_mb: int) -> None:
    """Beyond what the process has now: what was imported before is not the environment's doing."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError as error:
        raise ConfigError("rollout.isolation.max_memory_mb needs Linux. Set it to null.") from error
    used = pages * resource.getpagesize()
    limit = used + (max_memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _write(answer: Mapping[str, object]) -> str:
    try:
        return json.dumps(answer, default=_as_plain)
    except (TypeError, ValueError, RecursionError) as error:
        return tell_error(error)


def _as_plain(value: Any) -> object:
    """Numbers of other packages as numbers, everything else as a text that says what it was."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else repr(value)


def _name_error(error: BaseException) -> tuple[str, str]:
    """A failure of turnwise's own speaks for itself; any other is named."""
    own = isinstance(error, TurnwiseError)
    return type(error).__name__, outsiders.told_by(error) if own else outsiders.tell_error(error)

"""An environment in a process of its own: whatever it does there, hang, crash, leak or exit, ends one episode.

In come an environment's name and settings, a time limit and a memory limit; out comes an environment that is played
like any other, snapshots left out: a state would have to be unpickled. Each has its own process, which lives as long as
it behaves; one that was killed is replaced at the next reset. The two sides speak JSON: nothing that the process sends
is ever unpickled. It refuses to know who plays.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from turnwise.config.settings import require_package
from turnwise.config.trust import require_trusted
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.check import Check, CheckReport
from turnwise.envs.env_worker import OUT_OF_MEMORY, format_error, handle_call, introduce, serve
from turnwise.errors import ConfigError, EnvError, TaskError
from turnwise.infra.parsing import parse_json

SETTING = "rollout.isolation.python"
_PYTHON_START_LIMIT_S = 180.0
_ANSWER_LIMIT_S = 10.0
"""For what the server does itself, which is little."""
_POLL_S = 0.01
_ERRORS = {error.__name__: error for error in (ConfigError, TaskError, EnvError)}
_BOOT = """
import importlib.util, json, sys
from multiprocessing.connection import Connection
folder = sys.argv.pop(1)
try:
    found = importlib.util.spec_from_file_location(
        "turnwise", folder + "/__init__.py", submodule_search_locations=[folder]
    )
    sys.modules["turnwise"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(sys.modules["turnwise"])
    from turnwise.envs.env_worker import main
except Exception as error:
    Connection(int(sys.argv[1])).send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    sys.exit(0)
main()
"""
"""Only this package comes from our side; its neighbours in site-packages would not fit the other Python."""


class ExternalPython:
    """The server under one program."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._control, theirs = multiprocessing.Pipe()
        folder = Path(__file__).resolve().parents[1]
        command = [program, "-c", _BOOT, str(folder), str(theirs.fileno())]
        try:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        except OSError as error:
            raise ConfigError(
                f"{SETTING}: '{program}' cannot be started ({error.strerror or error}). Give the path of a Python, "
                "such as .venv-envs/bin/python (make envs-of-others)."
            ) from error
        theirs.close()
        answer = self._wait(_PYTHON_START_LIMIT_S)
        if "error" in answer:
            self.close()
            raise ConfigError(
                f"{SETTING}: '{program}' cannot run environments ({answer['error']}). It needs Python 3.11 or newer "
                "with numpy and pydantic: install them there."
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(self, job: str, pipe: Connection, arguments: Sequence[object], limit_s: float) -> ExternalProcess:
        """A new process that has the other end of `pipe`; importing its packages for the first time may take long."""
        with self._lock:
            try:
                self._control.send_bytes(json.dumps(["start", job, arguments]).encode())
                send_handle(self._control, pipe.fileno(), self._process.pid)
            except OSError:
                raise self._gone() from None
            return ExternalProcess(self, self._wait(limit_s)["result"])

    def ask(self, kind: str, process_id: int) -> int | None:
        with self._lock:
            try:
                self._control.send_bytes(json.dumps([kind, process_id]).encode())
            except OSError:
                raise self._gone() from None
            return self._wait(_ANSWER_LIMIT_S)["result"]

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ANSWER_LIMIT_S)

    def _wait(self, limit_s: float) -> Mapping[str, Any]:
        try:
            if not self._control.poll(limit_s):
                self.close()
                raise EnvError(f"{SETTING}: '{self._program}' did not answer within {limit_s:g} s.")
            return json.loads(self._control.recv_bytes())
        except (EOFError, OSError, ValueError):
            raise self._gone() from None

    def _gone(self) -> EnvError:
        self.close()
        return EnvError(f"{SETTING}: '{self._program}' ended with exit code {self._process.returncode}.")


class ExternalProcess:
    """A process that the server of another Python has forked; in the words of `multiprocessing`."""

    def __init__(self, server: ExternalPython, process_id: int) -> None:
        self._server = server
        self.pid = process_id
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        return self._look("look") is None

    def join(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._look("look") is None and (deadline is None or time.monotonic() < deadline):
            time.sleep(_POLL_S)

    def kill(self) -> None:
        self._look("end")

    def _look(self, kind: str) -> int | None:
        if self.exitcode is None:
            try:
                self.exitcode = self._server.ask(kind, self.pid)
            except EnvError:
                # With the server its processes are gone too.
                self.exitcode = -9
        return self.exitcode


_SERVERS: dict[str, ExternalPython] = {}
"""By the path of their program; they end with this process."""
_SERVERS_LOCK = threading.Lock()


def find_python(program: str) -> ExternalPython:
    """The server under this program, started at the first call and again if it is gone."""
    # A virtual environment's program is a link, which must not be followed: it is found by where it lies.
    path = os.path.abspath(Path(program).expanduser())
    with _SERVERS_LOCK:
        if path not in _SERVERS or not _SERVERS[path].is_alive:
            _SERVERS[path] = ExternalPython(path)
        return _SERVERS[path]


def check_with_python(
    program: str, name: str, params: Mapping[str, object], *, num_episodes: int | None, limit_s: float
) -> list[tuple[str, bool | None, str]]:
    """The name, outcome and detail of every check of an environment, made under another Python."""
    ours, theirs = multiprocessing.Pipe()
    process = find_python(program).start("check", theirs, (name, dict(params), num_episodes), _PYTHON_START_LIMIT_S)
    theirs.close()
    try:
        answer = json.loads(ours.recv_bytes()) if ours.poll(limit_s) else None
    except (EOFError, OSError):
        raise EnvError(f"{name}: the process of its check ended before it was done.") from None
    finally:
        process.kill()
        ours.close()
    if answer is None:
        raise EnvError(f"{name}: its check took longer than {limit_s:g} s.")
    if "error" in answer:
        kind, message = answer["error"]
        raise _ERRORS.get(kind, EnvError)(message)
    return [(check, passed, detail) for check, passed, detail in answer["result"]]


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


def check_in_process(
    python: str, name: str, params: Mapping[str, object], *, num_episodes: int | None = None
) -> CheckReport:
    """`check_env` under another Python."""
    rows = check_with_python(python, name, params, num_episodes=num_episodes, limit_s=_CHECK_LIMIT_S)
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
        self._process: BaseProcess | ExternalProcess | None = None
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
            require_trusted(f"rollout.isolation.python: {self._python}")
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


_needed = partial(require_package, extra="ray", asked_by="rollout.isolation.type: 'ray'")


class EnvActor:
    """What is at the other end."""

    def open(self, name: str, params: Mapping[str, Any]) -> str:
        try:
            self._env = make_env(name, **params)
            return introduce(self._env)
        except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
            return format_error(error)

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return handle_call(self._env, method, args, kwargs)


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

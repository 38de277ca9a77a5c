"""Another Python on this machine: environments whose packages cannot stand beside ours run under it.

In comes the path of its program; out come processes that look like those of `multiprocessing`. One server per program
imports an environment's packages once and forks from there. The other Python needs nothing of ours but numpy and
pydantic: this package is lent to it, file by file, without the packages that lie beside it. It refuses to know what the
processes do.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, EnvError, TaskError

SETTING = "rollout.isolation.python"
_START_LIMIT_S = 180.0
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
    from turnwise.envs.fork_server import main
except Exception as error:
    Connection(int(sys.argv[1])).send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    sys.exit(0)
main()
"""
"""Only this package comes from our side; its neighbours in site-packages would not fit the other Python."""


class OtherProcess:
    """A process that the server of another Python has forked; in the words of `multiprocessing`."""

    def __init__(self, server: OtherPython, process_id: int) -> None:
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


class OtherPython:
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
        answer = self._wait(_START_LIMIT_S)
        if "error" in answer:
            self.close()
            raise ConfigError(
                f"{SETTING}: '{program}' cannot run environments ({answer['error']}). It needs Python 3.11 or newer "
                "with numpy and pydantic: install them there."
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(self, job: str, pipe: Connection, arguments: Sequence[object], limit_s: float) -> OtherProcess:
        """A new process that has the other end of `pipe`; importing its packages for the first time may take long."""
        with self._lock:
            try:
                self._control.send_bytes(json.dumps(["start", job, arguments]).encode())
                send_handle(self._control, pipe.fileno(), self._process.pid)
            except OSError:
                raise self._gone() from None
            return OtherProcess(self, self._wait(limit_s)["result"])

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


_SERVERS: dict[str, OtherPython] = {}
"""By the path of their program; they end with this process."""
_SERVERS_LOCK = threading.Lock()


def find_python(program: str) -> OtherPython:
    """The server under this program, started at the first call and again if it is gone."""
    # A virtual environment's program is a link, which must not be followed: it is found by where it lies.
    path = os.path.abspath(Path(program).expanduser())
    with _SERVERS_LOCK:
        if path not in _SERVERS or not _SERVERS[path].is_alive:
            _SERVERS[path] = OtherPython(path)
        return _SERVERS[path]


def check_under(
    program: str, name: str, params: Mapping[str, object], *, num_episodes: int | None, limit_s: float
) -> list[tuple[str, bool | None, str]]:
    """The name, outcome and detail of every check of an environment, made under another Python."""
    ours, theirs = multiprocessing.Pipe()
    process = find_python(program).start("check", theirs, (name, dict(params), num_episodes), _START_LIMIT_S)
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

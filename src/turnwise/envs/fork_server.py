"""Runs under another Python: imports what an environment needs once, and forks a process for each that is asked for.

In come requests in JSON over a pipe, with the other end of a new environment's pipe beside them; out go process ids and
exit codes. It is the parent of those processes, so that an id stays theirs until it has said how they ended. It ends
with whoever started it. It refuses to know what is played.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, cast

from turnwise.config.component import ENVS
from turnwise.envs.base import BaseEnv
from turnwise.envs.check import check_env
from turnwise.envs.make import make_env
from turnwise.envs.served import serve, tell_error


def run(control: Connection) -> None:
    """Answer requests until the other side is gone; its processes see the same and end themselves."""
    # Ctrl-C is for the parent, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control.send_bytes(b'{"result": null}')
    while True:
        try:
            kind, *arguments = json.loads(control.recv_bytes())
        except (EOFError, OSError):
            return
        answer = _start(control, *arguments) if kind == "start" else _look_after(kind, *arguments)
        control.send_bytes(json.dumps({"result": answer}).encode())


def _start(control: Connection, job: str, arguments: list[Any]) -> int:
    """The id of a new process that has a pipe of its own."""
    handle = recv_handle(control)
    _load(arguments[0])
    process_id = os.fork()
    if process_id:
        os.close(handle)
        return process_id
    control.close()
    try:
        _JOBS[job](Connection(handle), *arguments)
    except BaseException:  # noqa: BLE001 - nothing may go on behind a fork
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _load(name: str) -> None:
    """Import once what every environment of this name needs; what is wrong with it the new process says itself."""
    with suppress(Exception):
        env_class = cast("type[BaseEnv]", ENVS.get_target(name))
        env_class.load_packages()


def _look_after(kind: str, process_id: int) -> int | None:
    """How a process ended; None while it lives."""
    if kind == "end":
        os.kill(process_id, signal.SIGKILL)
    found, status = os.waitpid(process_id, 0 if kind == "end" else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _check(pipe: Connection, name: str, params: Mapping[str, Any], num_episodes: int | None) -> None:
    """Play an environment against its contract here, where its packages, generators and state are."""
    try:
        report = check_env(lambda: make_env(name, **params), num_episodes=num_episodes)
        rows = [[check.name, check.passed, check.detail] for check in report.checks]
        pipe.send_bytes(json.dumps({"result": rows}).encode())
    except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
        pipe.send_bytes(tell_error(error).encode())


_JOBS: Mapping[str, Callable[..., None]] = {"serve": serve, "check": _check}


def main() -> None:
    """`sys.argv[1]` is the pipe."""
    run(Connection(int(sys.argv[1])))

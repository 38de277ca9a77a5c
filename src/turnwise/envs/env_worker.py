"""What an environment's own process does: it answers calls in JSON until whoever asks is gone.

In come a pipe and the name and settings of an environment; out go answers, each with what was returned or raised and
what the environment says of itself. It refuses to know who asks, and under which Python it was started: everything that
is imported here and by an environment needs numpy and pydantic at most.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, cast

from turnwise.config.component import ENVS
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.check import check_env
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.infra import untrusted as outsiders
from turnwise.infra.parsing import check_json_depth, parse_json

OUT_OF_MEMORY = 77
"""The exit code of a process that could not even say so."""


def serve(pipe: Connection, name: str, params: Mapping[str, object], max_memory_mb: int | None) -> None:
    """Build the environment, then answer calls until the other side is gone."""
    # Ctrl-C is for the parent, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        env = make_env(name, **params)
        if max_memory_mb is not None:
            _limit_memory(max_memory_mb)
        pipe.send_bytes(introduce(env).encode())
    except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
        pipe.send_bytes(format_error(error).encode())
        return
    while True:
        try:
            method, args, kwargs = parse_json(pipe.recv_bytes())
            pipe.send_bytes(handle_call(env, method, args, kwargs).encode())
        except (EOFError, OSError):
            return
        except MemoryError:
            # Nothing is left to say it with: not even a traceback, which would fill the terminal of the run.
            os._exit(OUT_OF_MEMORY)


def introduce(env: BaseEnv) -> str:
    """The first answer of an environment, in JSON."""
    return _write({"result": None, "about": _describe(env, is_new=True)})


def handle_call(env: BaseEnv, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What a call returned or raised, in JSON."""
    try:
        return _write({"result": getattr(env, method)(*args, **kwargs), "about": _describe(env)})
    except Exception as error:  # noqa: BLE001 - the boundary: an author's code may raise whatever it likes
        return format_error(error)


def format_error(error: BaseException) -> str:
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
        text = json.dumps(answer, default=_as_plain)
        check_json_depth(text)
        return text
    except (TypeError, ValueError, RecursionError) as error:
        return format_error(error)


def _as_plain(value: Any) -> object:
    """Numbers of other packages as numbers, everything else as a text that says what it was."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else repr(value)


def _name_error(error: BaseException) -> tuple[str, str]:
    """A failure of turnwise's own speaks for itself; any other is named."""
    own = isinstance(error, TurnwiseError)
    return type(error).__name__, outsiders.told_by(error) if own else outsiders.format_error(error)


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
        pipe.send_bytes(format_error(error).encode())


_JOBS: Mapping[str, Callable[..., None]] = {"serve": serve, "check": _check}


def main() -> None:
    """`sys.argv[1]` is the pipe."""
    run(Connection(int(sys.argv[1])))

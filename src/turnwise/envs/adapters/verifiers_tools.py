"""Programs of tools for the package verifiers, forked where the package is loaded already.

In comes what the package would start as `python -m MODULE` for every episode that has tools; out comes the same program
as a process of its own, which listens after a fraction of a second: a new Python imports the package for seconds. Its
chances are seeded by those of the episode. It refuses to know what the tools do; what the package starts in any other
way, and whatever it starts where a fork would tear threads apart, it starts itself.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import random
import resource
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

_LISTEN_S = 60.0
"""A program may prepare itself before it listens; the package waits longer, in steps of a second."""
_POLL_S = 0.01
_WATCH_S = 1.0
_PR_SET_PDEATHSIG = 1


class ToolPrograms:
    """A process that only forks: the parent of all programs of tools of this one, with which they end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            _fork_on_request(theirs)
        theirs.close()

    def start(self, module: str, folder: str, log: str, env: Mapping[str, str]) -> int:
        """The id of the new process."""
        limit = resource.getrlimit(resource.RLIMIT_AS)
        request = [module, folder, log, dict(env), random.getrandbits(32), limit]
        with self._lock:
            self._control.send_bytes(json.dumps(request).encode())
            return json.loads(self._control.recv_bytes())


class _Program:
    """A program as the package holds those that it has started itself."""

    def __init__(self, process_id: int) -> None:
        self.pid = process_id

    @property
    def returncode(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    async def wait(self) -> int:
        while (code := self.returncode) is None:
            await asyncio.sleep(_POLL_S)
        return code


_PROGRAMS: dict[int, ToolPrograms] = {}
"""Of this process, by its id; a process that was forked from it has none yet."""


def fork_tool_programs(runtime_class: Any) -> None:
    """Let `runtime_class`, which starts programs on this machine, fork those of tools from now on."""
    if threading.active_count() > 1 or os.getpid() in _PROGRAMS:
        return
    programs = _PROGRAMS[os.getpid()] = ToolPrograms()
    run_anew = runtime_class.run_background

    async def run_background(self: Any, argv: Sequence[str], env: Mapping[str, str], log: str) -> None:
        port_file = env.get("MCP_PORT_FILE")
        if list(argv[:2]) != [sys.executable, "-m"] or len(argv) != 3 or port_file is None:
            await run_anew(self, argv, env, log)
            return
        kept = {name: value for name, value in os.environ.items() if "API_KEY" not in name.upper()}
        whole = kept | dict(self.process_env(env))
        program = _Program(programs.start(argv[2], str(self.workdir), log, whole))
        self._background.append(program)
        with suppress(TimeoutError):
            # Where it does not listen in time, or is gone, the package finds out and says what the program wrote.
            await asyncio.wait_for(_until_it_listens(program, Path(port_file)), _LISTEN_S)

    runtime_class.run_background = run_background


async def _until_it_listens(program: _Program, port_file: Path) -> None:
    while program.returncode is None:
        with suppress(OSError, ValueError):
            _, writer = await asyncio.open_connection("127.0.0.1", int(port_file.read_text()))
            writer.close()
            return
        await asyncio.sleep(_POLL_S)


# --- in the process that only forks -----------------------------------------------------------------------------------


def _fork_on_request(control: Connection) -> None:
    """Until the other side is gone; never returns."""
    try:
        # What else the parent has open is not ours to keep open when it ends.
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        # Whoever has ended is forgotten at once, so that its id says that it is gone.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        own_id = os.getpid()
        while True:
            request = json.loads(control.recv_bytes())
            if process_id := os.fork():
                control.send_bytes(json.dumps(process_id).encode())
                continue
            _end_with(own_id)
            control.close()
            _run(*request)
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:  # noqa: BLE001 - nothing may go on behind a fork
        traceback.print_exc()
        os._exit(1)


def _end_with(parent: int) -> None:
    """This process ends with its parent: an environment that is killed cannot end its programs any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        # It was gone before it could be watched.
        os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(0)


def _run(module: str, folder: str, log: str, env: Mapping[str, str], seed: int, limit: tuple[int, int]) -> None:
    """What `python -m MODULE` does, here; never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(env)
    resource.setrlimit(resource.RLIMIT_AS, limit)
    random.seed(seed)
    np.random.seed(seed)
    code = 0
    try:
        sys.argv = [module]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - nothing may go on behind a fork
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

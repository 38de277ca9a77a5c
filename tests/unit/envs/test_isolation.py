"""An environment in its own process: the same play, and faults that stay where they are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from turnwise.envs.boundary import reset_env, step_env
from turnwise.envs.isolation import IsolatedEnv
from turnwise.envs.make import make_env
from turnwise.errors import ConfigError, EnvError

from ...clock import HANG_S

FAULTY = "tests.unit.envs.faulty:FaultyEnv"


@pytest.fixture
def env() -> Iterator[IsolatedEnv]:
    made = IsolatedEnv(FAULTY, {}, time_limit_s=HANG_S, max_memory_mb=256)
    yield made
    made.close()


def test_it_plays_as_it_does_at_home() -> None:
    isolated, home = IsolatedEnv("frozen_lake", {"size": 3}, time_limit_s=HANG_S), make_env("frozen_lake", size=3)
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


def test_what_cannot_be_sent_becomes_text(env: IsolatedEnv) -> None:
    env.reset(1)
    assert env.step("go")[3]["odd"] == "{1, 2}"


def test_a_users_mistake_stays_one() -> None:
    with pytest.raises(ConfigError, match="size"):
        IsolatedEnv("frozen_lake", {"size": 1}, time_limit_s=HANG_S)


def test_closing_ends_the_process() -> None:
    env = IsolatedEnv(FAULTY, {}, time_limit_s=HANG_S)
    process = env._process
    env.close()
    env.close()
    assert process is not None
    assert not process.is_alive()

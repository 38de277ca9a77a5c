"""Names with a prefix, functions as tasks, generators of their own, and packages that are missing."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from turnwise.config.component import ENVS, ClassRegistry
from turnwise.config.load import dump_settings, load_settings
from turnwise.envs.adapters.external import MAX_REPLY_LENGTH, split_seed
from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError, RewardError, TaskError
from turnwise.infra import process_state as global_rngs
from turnwise.infra.process_state import GlobalRngGuard

from ...clock import HANG_S

TASKS = "tests.unit.envs.test_adapters"


def add(seed: int, split: str) -> tuple[str, Callable[[str], float]]:
    first, second = seed % 7, len(split)
    return f"{first} and {second} is", lambda reply: float(reply == str(first + second))


def sloppy(seed: int, split: str) -> tuple[str, Callable[[str], float]]:
    """Draws from both global generators, while asking and while grading."""
    return f"{random.random()} {np.random.rand()}", lambda reply: random.random()


def patient(seed: int, split: str) -> tuple[str, Callable[[str], float]]:
    """Draws again and again, and lets other threads run in between."""

    def draw() -> str:
        drawn = []
        for _ in range(20):
            drawn.append(f"{random.random()} {np.random.rand()}")
            time.sleep(0.001)
        return " ".join(drawn)

    return draw(), lambda reply: float(hash(draw()) % 1000)


def word_for_score(seed: int, split: str) -> tuple[str, Callable[[str], object]]:
    return "?", lambda reply: "good"


def raising(seed: int, split: str) -> tuple[str, Callable[[str], float]]:
    return "?", float


def prompt_alone(seed: int, split: str) -> str:
    return "?"


number = 5


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_prefix_chooses_the_adapter_and_other_colons_stay_paths() -> None:
    registry = ClassRegistry("fruit", {"path": "pathlib:Path"}, adapters={"shout": "builtins:ascii"})
    assert registry.get_target("shout:a:b") == "'a:b'"
    assert registry.get_target("pathlib:PurePath").__name__ == "PurePath"  # type: ignore[attr-defined]
    assert sorted(registry) == ["path"]


def test_one_name_is_one_class() -> None:
    name = f"function:{TASKS}:add"
    assert ENVS.get_target(name) is ENVS.get_target(name)
    assert isinstance(make_env(name), BaseEnv)
    assert make_env(name).label() == name


def test_a_settings_file_names_an_adapted_world(tmp_path: Path) -> None:
    env = {"type": f"function:{TASKS}:add", "success_above": 0.5}
    settings = load_settings({"env": env, "rollout": {"max_turns": 1}})
    assert settings.env.model_dump(exclude={"train"}) == env
    (tmp_path / "again.yaml").write_text(dump_settings(settings))
    assert load_settings(str(tmp_path / "again.yaml")).env.model_dump() == settings.env.model_dump()
    with pytest.raises(ConfigError, match=r"env.success_abov: unknown setting. Did you mean 'success_above'\?"):
        load_settings({"env": {"type": f"function:{TASKS}:add", "success_abov": 0.5}})
    with pytest.raises(ConfigError, match=r"env.type: .*has no 'nothing'"):
        load_settings({"env": {"type": f"function:{TASKS}:nothing"}})


@pytest.mark.parametrize("prefix", ["function", "gymnasium", "openenv", "reasoning_gym", "textarena"])
def test_a_prefix_alone_names_nothing(prefix: str) -> None:
    with pytest.raises(ConfigError, match=f"'{prefix}:' names nothing; expected e.g. '{prefix}:"):
        make_env(f"{prefix}:")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("gymnasium:Nothing-v9", "gymnasium", "gymnasium"),
        ("openenv:http://127.0.0.1:1", "websockets", "openenv"),
        ("reasoning_gym:nothing", "reasoning_gym", "reasoning-gym"),
        ("textarena:Nothing-v9", "textarena", "textarena"),
    ],
)
def test_a_missing_package_is_explained(name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [package, *(loaded for loaded in sys.modules if loaded.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{name} needs the package .*pip install 'turnwise\[{extra}\]'"):
        make_env(name)


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_function_keeps_the_contract() -> None:
    for function in ("add", "sloppy"):
        report = check_env(f"function:{TASKS}:{function}", num_episodes=6)
        assert report.ok, report.failures


def test_a_function_asks_and_grades_once() -> None:
    env = make_env(f"function:{TASKS}:add")
    assert env.reset(9, split="eval") == "2 and 4 is"
    assert env.step("  ")[:3] == ("2 and 4 is", 0.0, False)
    assert env.step("6" * (MAX_REPLY_LENGTH + 1))[3]["action_is_valid"] is False
    text, reward, done, info = env.step("6")
    assert (text, reward, done, info["success"]) == ("", 1.0, True, True)
    with pytest.raises(EnvError, match="episode is over"):
        env.step("6")
    with pytest.raises(TaskError, match="no split 'test'"):
        env.reset(0, split="test")
    with pytest.raises(TaskError, match="the seed -1 was given"):
        env.reset(-1)


def test_success_is_a_score_above_the_bound() -> None:
    for bound, success in ((0.5, True), (1.0, False)):
        env = make_env(f"function:{TASKS}:add", success_above=bound)
        env.reset(9, split="eval")
        assert env.step("6")[3]["success"] is success


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("word_for_score", RewardError, "the reward 'good'; expected a finite number"),
        ("raising", EnvError, "ValueError: could not convert"),
        ("prompt_alone", EnvError, r"returned '\?'; expected a function that takes \(seed, split\)"),
    ],
)
def test_faults_of_a_function_are_typed_errors(function: str, error: type[Exception], message: str) -> None:
    env = make_env(f"function:{TASKS}:{function}")

    def play() -> None:
        reset_env(env, 0)
        step_env(env, "five")

    with pytest.raises(error, match=message):
        play()


def test_what_is_no_such_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="is 5; expected a function"):
        make_env(f"function:{TASKS}:number")
    with pytest.raises(ConfigError, match="cannot be called so"):
        make_env("function:json:dumps")


# --- generators ------------------------------------------------------------------------------------------------------


def test_foreign_draws_neither_disturb_nor_are_disturbed() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), float(np.random.rand())

    alone, beside = GlobalRngGuard("alone"), GlobalRngGuard("beside")
    alone.seed(3)
    beside.seed(3)
    with alone.inside():
        expected = [draw(), draw()]
    random.seed(1)
    np.random.seed(1)
    outside = [draw(), draw()]
    random.seed(1)
    np.random.seed(1)
    with beside.inside():
        first = draw()
    assert draw() == outside[0]
    with beside.inside():
        assert [first, draw()] == expected
    with pytest.raises(ZeroDivisionError), beside.inside():
        _ = random.random() / 0
    assert draw() == outside[1]


def play_patiently(start: threading.Barrier) -> tuple[str, float]:
    env = make_env(f"function:{TASKS}:patient")
    start.wait(HANG_S)
    return reset_env(env, 3), step_env(env, "a").reward


def test_equal_seeds_give_equal_episodes_in_as_many_threads_as_there_are() -> None:
    alone = play_patiently(threading.Barrier(1))
    start = threading.Barrier(6)
    with ThreadPoolExecutor(6) as threads:
        together = [threads.submit(play_patiently, start) for _ in range(6)]
        assert [each.result() for each in together] == [alone] * 6


def test_whoever_waits_for_a_call_that_hangs_is_told_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_rngs, "MAX_TURN_S", 0.0)
    monkeypatch.setattr(global_rngs, "_LOOK_S", 0.001)
    is_inside, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        with GlobalRngGuard("function:mine:stuck").inside():
            is_inside.set()
            may_end.wait(HANG_S)

    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(hang)
        assert is_inside.wait(HANG_S)
        try:
            with pytest.raises(
                EnvError, match=r"a call of function:mine:stuck has kept them .*isolation\.type=process"
            ):
                reset_env(make_env(f"function:{TASKS}:sloppy"), 0)
        finally:
            may_end.set()
        hanging.result(HANG_S)
    # Whoever comes back gives them back.
    assert reset_env(make_env(f"function:{TASKS}:sloppy"), 0)


def test_splits_never_share_a_seed() -> None:
    train, held_out = ({split_seed(seed, split) for seed in range(100)} for split in ("train", "eval"))
    assert train.isdisjoint(held_out)
    assert len(train | held_out) == 200

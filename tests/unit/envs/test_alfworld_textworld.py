"""The original's engine as a backend: word for word what the built-in rules say, and its faults contained."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from turnwise.envs.alfworld import AlfWorld, TextWorldEngine
from turnwise.envs.alfworld.game import TASK_TYPES
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError

from .alfworld_games import needs_games, unpack_games

needs_textworld = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("textworld", "alfworld", "fast_downward")),
    reason="TextWorld is not installed; pip install 'turnwise[alfworld]'",
)
NUM_STEPS = 10


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_games(tmp_path_factory.mktemp("games"))


def pair(file: Path) -> tuple[AlfWorld, AlfWorld]:
    return AlfWorld(game_file=str(file)), AlfWorld(game_file=str(file), backend="textworld")


@needs_games
@needs_textworld
class TestRealEngine:
    @pytest.mark.parametrize("task_type", TASK_TYPES)
    def test_both_backends_tell_the_same_story(self, games: Path, task_type: str) -> None:
        file = next(file for file in sorted(games.rglob("game.tw-pddl")) if task_type in str(file))
        builtin, real = pair(file)
        rng = random.Random(task_type)
        assert real.reset(0) == builtin.reset(0)
        assert real.admissible_commands == builtin.admissible_commands
        for _ in range(NUM_STEPS):
            command = rng.choice([builtin.oracle(), rng.choice(builtin.admissible_commands), "dance"])
            expected = builtin.step(command)
            assert real.step(command) == expected
            if expected[2]:
                break
        real.close()

    def test_the_oracle_wins_and_the_same_game_begins_again(self, games: Path) -> None:
        builtin, real = pair(next(games.rglob("game.tw-pddl")))
        assert builtin.reset(0) == real.reset(0)
        done = False
        for _ in range(30):
            _, reward, done, info = real.step(real.oracle())
            if done:
                break
        assert (done, reward, info["won"]) == (True, 1.0, True)
        assert real.reset(1) == builtin.reset(1)
        real.close()

    def test_a_restored_episode_goes_on_from_where_it_was(self, games: Path) -> None:
        _, real = pair(next(games.rglob("game.tw-pddl")))
        real.reset(0)
        real.step(real.oracle())
        state, command = real.snapshot(), real.oracle()
        expected = real.step(command)
        real.restore(state)
        assert real.step(command) == expected
        real.close()


# --- faults, with an engine of straw --------------------------------------------------------------------------------


class Straw:
    """Draws from the global generators, and answers as it is told to."""

    def __init__(self, answer: Callable[[str], dict[str, Any]]) -> None:
        self._answer = answer

    def reset(self) -> dict[str, Any]:
        return {"feedback": f"{random.random()} {np.random.rand()}", "won": False, "admissible_commands": ["b", "a"]}

    def step(self, command: str) -> tuple[dict[str, Any], int, bool]:
        return self._answer(command), 0, False

    def close(self) -> None:
        pass


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that an engine of straw was started with."""
    files: list[str] = []

    def answer(command: str) -> dict[str, Any]:
        if command == "fail":
            raise RuntimeError("the engine broke")
        return {"feedback": command, "won": "yes" if command == "win" else False, "admissible_commands": []}

    def start(file: str, **_: object) -> Straw:
        files.append(file)
        return Straw(answer)

    textworld, wrappers = ModuleType("textworld"), ModuleType("wrappers")
    textworld.start, textworld.EnvInfos = start, lambda **_: None  # type: ignore[attr-defined]
    wrappers.AlfredDemangler = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textworld", textworld)
    monkeypatch.setitem(sys.modules, "fast_downward", ModuleType("fast_downward"))
    for name in ("alfworld", "alfworld.agents", "alfworld.agents.environment"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "alfworld.agents.environment.alfred_tw_env", wrappers)
    return files


def test_a_file_is_loaded_once_in_a_row_and_anew_after_a_fault(started: list[str]) -> None:
    engine = TextWorldEngine()
    engine.begin(Path("one"))
    engine.begin(Path("one"))
    assert engine.commands == ["a", "b"]
    with pytest.raises(RuntimeError, match="the engine broke"):
        engine.play("fail")
    engine.begin(Path("one"))
    engine.begin(Path("two"))
    assert started == ["one", "one", "two"]


def test_a_verdict_that_is_none_is_refused(started: list[str]) -> None:
    engine = TextWorldEngine()
    engine.begin(Path("one"))
    with pytest.raises(EnvError, match=r"won 'yes'.*expected a text, true or false"):
        engine.play("win")


def test_the_global_generators_are_left_alone(started: list[str]) -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    first = TextWorldEngine().begin(Path("one"))
    assert (random.random(), np.random.rand()) == expected
    assert TextWorldEngine().begin(Path("one")) == first


@needs_games
def test_a_fault_ends_the_episode_as_data(games: Path, started: list[str]) -> None:
    file = next(games.rglob("game.tw-pddl"))
    env = AlfWorld(game_file=str(file), backend="textworld")
    reset_env(env, 0)
    with pytest.raises(EnvError, match="RuntimeError: the engine broke"):
        step_env(env, "fail")
    assert reset_env(env, 0)
    assert started == [str(file)] * 2


@needs_games
@pytest.mark.parametrize("package", ["textworld", "fast_downward", "alfworld"])
def test_a_missing_package_is_explained(
    games: Path, package: str, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"env.backend 'textworld' needs the package .*'turnwise\[alfworld\]'"):
        AlfWorld(game_file=str(next(games.rglob("game.tw-pddl"))), backend="textworld")

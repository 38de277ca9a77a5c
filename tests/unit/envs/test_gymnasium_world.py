"""Worlds of gymnasium as text: spaces, actions, luck, faults."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError, RewardError

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")
spaces = gymnasium.spaces


class Probe(gymnasium.Env):
    """A world of any spaces that tells what it was given."""

    def __init__(self, observation: Any = None, action: Any = None, reward: Any = 1.0) -> None:
        self.observation_space = observation or spaces.Text(50)
        self.action_space = action or spaces.Discrete(2)
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample() if not self.is_text else "begin", {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if isinstance(self.reward, Exception):
            raise self.reward
        return f"{action} {self.np_random.integers(10**6)} {random.random()}", self.reward, False, True, {"array": [1]}

    @property
    def is_text(self) -> bool:
        return isinstance(self.observation_space, spaces.Text)


@pytest.fixture(autouse=True)
def probe() -> Any:
    gymnasium.register(id="Probe-v0", entry_point=Probe)
    yield
    del gymnasium.registry["Probe-v0"]


def make_probe(**members: Any) -> Any:
    """The adapter around a Probe; its spaces are no options of a settings file."""
    spec = gymnasium.spec("Probe-v0")
    spec.kwargs.update(members)
    return make_env("gymnasium:Probe-v0")


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Blackjack-v1"])
def test_toy_worlds_keep_the_contract(name: str) -> None:
    report = check_env(f"gymnasium:{name}", num_episodes=4)
    assert report.ok, report.failures


def test_a_still_lake_is_crossed_with_named_actions() -> None:
    words = ["Left", "Down", "Right", "Up"]
    env = make_env(
        "gymnasium:FrozenLake-v1", options={"is_slippery": False}, action_words=words, rules="Cross the lake."
    )
    assert env.reset(0) == "0"
    assert (env.action_names, env.instructions) == (tuple(words), "Cross the lake.")
    assert env.step("up")[-1] == {"success": False, "action_is_valid": True, "action_is_effective": False}
    assert env.step("jump")[1:3] == (0.0, False)
    results = [env.step(word) for word in ("Down", "down ", "Right", "Right", "Down", "RIGHT")]
    assert [result[0] for result in results] == ["4", "8", "9", "10", "14", "15"]
    assert results[-1][1:4] == (1, True, False)
    assert results[-1][-1]["success"] is True
    with pytest.raises(EnvError, match="episode is over"):
        env.step("Up")


def test_success_is_more_reward_than_the_bound() -> None:
    lake = {"is_slippery": False, "desc": ["SG"]}
    for bound, success in ((0.0, True), (1.0, False)):
        env = make_env("gymnasium:FrozenLake-v1", options=lake, success_above=bound)
        env.reset(0)
        assert env.step("2")[-1]["success"] is success


def test_siblings_share_the_layout_and_not_the_luck() -> None:
    env = make_env("gymnasium:FrozenLake-v1")

    def walk(dynamics_seed: int) -> list[str]:
        env.reset(5, dynamics_seed=dynamics_seed)
        return [env.step("1")[0] for _ in range(2)]

    assert walk(1) == walk(1)
    assert len({tuple(walk(luck)) for luck in range(30)}) > 3


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        ("Discrete(9)", 5, "5"),
        ("MultiDiscrete([3, 3])", np.array([1, 2]), "1 2"),
        ("MultiBinary(3)", np.array([1, 0, 1]), "1 0 1"),
        ("Box(0, 9, (2, 2), np.int8)", np.array([[1, 2], [3, 4]]), "1 2\n3 4"),
        ("Tuple([spaces.Discrete(3), spaces.Discrete(2)])", (2, 1), "2 1"),
        ("Dict(at=spaces.Discrete(3), word=spaces.Text(9))", {"at": 1, "word": "go"}, "at: 1\nword: go"),
        ("Text(9)", "hello", "hello"),
    ],
)
def test_observations_are_told(space: str, value: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_probe(observation=eval(f"spaces.{space}"))
    monkeypatch.setattr(Probe, "reset", lambda self, *, seed, options=None: (value, {}))
    assert env.reset(0) == text


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"observation": spaces.Box(0.0, 1.0, (4,))}, "its observations are Box"),
        ({"observation": spaces.Box(0, 255, (9, 9), np.uint8)}, "at most 64 whole numbers"),
        ({"observation": spaces.Tuple([spaces.Box(0.0, 1.0, (4,))])}, "its observations are Box"),
        ({"action": spaces.Box(0.0, 1.0, (1,))}, "its actions are Box"),
        ({"action": spaces.Discrete(65)}, r"its actions are Discrete\(65\)"),
    ],
)
def test_what_is_no_text_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_probe(**members)


@pytest.mark.parametrize(
    ("action", "names", "given", "passed"),
    [
        (spaces.Discrete(2, start=3), ("3", "4"), "4", "4"),
        (spaces.MultiDiscrete([2, 2]), ("0 0", "0 1", "1 0", "1 1"), " 1  0", "[1 0]"),
        (spaces.Text(5, charset="ab"), None, "abba", "abba"),
    ],
)
def test_actions_are_understood(action: Any, names: tuple[str, ...] | None, given: str, passed: str) -> None:
    env = make_probe(action=action)
    env.reset(0)
    assert env.action_names == names
    assert env.step("cab 7")[-1]["action_is_valid"] is False
    assert env.step(given)[0].startswith(f"{passed} ")


def test_faults_are_typed_errors() -> None:
    for reward, error in (("much", RewardError), (float("nan"), RewardError), (KeyError("oh"), EnvError)):
        env = make_probe(reward=reward)
        reset_env(env, 0)
        with pytest.raises(error):
            step_env(env, "0")


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("FrozenLak-v1", {}, "cannot be made with the options {}: NameNotFound"),
        ("FrozenLake-v1", {"options": {"slippery": True}}, r"options {'slippery': True}: TypeError"),
        ("FrozenLake-v1", {"action_words": ["a", "b"]}, "2 names are in env.action_words; expected 4"),
        ("FrozenLake-v1", {"action_words": ["a", "b", "c", "A"]}, "not all different"),
    ],
)
def test_wrong_settings_are_explained(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(f"gymnasium:{name}", **params)

"""The boundary: what is understood, what is refused, and how it is said."""

from __future__ import annotations

import asyncio
import sys
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from turnwise.envs.base import BaseEnv, make_env
from turnwise.envs.safe_calls import call_env, reset_env, step_env
from turnwise.errors import ConfigError, EnvError, RewardError, TaskError


class Answering(BaseEnv):
    """Answers with whatever it was given; raises it where it is an exception."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        return self._give()

    def step(self, action: str) -> tuple[Any, ...]:
        return self._give()

    def _give(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_four_values() -> None:
    result = step_env(Answering(("text", 1, True, {"success": True})), "go")
    assert (result.text, result.reward, result.terminated, result.truncated) == ("text", 1.0, True, False)
    assert result.info == {"success": True}
    assert type(result.reward) is float


def test_four_values_with_a_time_limit() -> None:
    result = step_env(Answering(("text", 0.0, True, {"truncated": True})), "go")
    assert (result.terminated, result.truncated) == (False, True)
    running = step_env(Answering(("text", 0.0, False, {"truncated": True})), "go")
    assert not running.done


@pytest.mark.parametrize(("terminated", "truncated"), [(True, False), (False, True), (True, True), (False, False)])
def test_five_values(terminated: bool, truncated: bool) -> None:
    result = step_env(Answering(("text", 0.5, terminated, np.bool_(truncated), MappingProxyType({}))), "go")
    assert (result.terminated, result.truncated, result.reward) == (terminated, truncated, 0.5)


@pytest.mark.parametrize(
    ("reward", "expected"), [(True, 1.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0), (-1, -1.0)]
)
def test_rewards_become_floats(reward: object, expected: float) -> None:
    result = step_env(Answering(("text", reward, False, {})), "go")
    assert result.reward == expected
    assert type(result.reward) is float


@pytest.mark.parametrize(
    "reward", [float("nan"), float("inf"), -np.inf, 10**400, "1.0", None, [1.0], 1j, np.array([1.0, 2.0])]
)
def test_other_rewards_are_refused(reward: object) -> None:
    with pytest.raises(RewardError, match="Answering"):
        step_env(Answering(("text", reward, False, {})), "go")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((b"text", 0.0, False, {}), "bytes as observation"),
        ((None, 0.0, False, {}), "NoneType as observation"),
        (("text", 0.0, False, [("success", True)]), "list as info"),
        (("text", 0.0, "no", {}), "'no' where True or False"),
        (("text", 0.0, False, None, {}), "None where True or False"),
        (("text", 0.0, False), "tuple of 3"),
        ("text", "returned a str"),
    ],
)
def test_broken_answers_are_refused(answer: object, message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        step_env(Answering(answer), "go")
    assert "Answering.step" in str(caught.value)


def test_any_exception_names_environment_action_and_cause() -> None:
    cause = KeyError("door")
    with pytest.raises(EnvError, match=r"Answering\.step\('open'\) failed: KeyError: 'door'") as caught:
        step_env(Answering(cause), "open")
    assert caught.value.__cause__ is cause


def test_long_actions_are_cut_in_messages() -> None:
    with pytest.raises(EnvError) as caught:
        step_env(Answering(ValueError()), "x" * 100_000)
    assert len(str(caught.value)) < 200


def test_reset_takes_text_or_gymnasiums_pair_and_nothing_else() -> None:
    assert reset_env(Answering("text")) == "text"
    assert reset_env(Answering(("text", {}))) == "text"
    with pytest.raises(EnvError, match=r"Answering\.reset returned a int as observation"):
        reset_env(Answering(3))


def test_failing_reset_names_seed_and_split() -> None:
    with pytest.raises(EnvError, match=r"reset\(seed=4, split='eval'\) failed: OSError: gone"):
        reset_env(Answering(OSError("gone")), 4, split="eval")


def test_reset_hands_every_seed_on() -> None:
    env = make_env("frozen_lake", is_slippery=True)
    direct = make_env("frozen_lake", is_slippery=True)
    assert reset_env(env, 3, split="eval", dynamics_seed=9) == direct.reset(3, split="eval", dynamics_seed=9)
    assert env.snapshot() == direct.snapshot()


def test_a_task_that_cannot_be_made_stays_a_task_error() -> None:
    with pytest.raises(TaskError, match="min_distance=9"):
        reset_env(make_env("frozen_lake", size=2, min_distance=9), 0)


def test_call_env_wraps_other_methods() -> None:
    env = make_env("bandit")
    with pytest.raises(EnvError, match="oracle"):
        call_env(env, "oracle")
    env.reset(0)
    assert call_env(env, "oracle") == "Dragon"


def test_make_env_by_name_and_by_path() -> None:
    assert type(make_env("turnwise.envs.bandit:Bandit", high_rate=0.5)) is type(make_env("bandit"))
    with pytest.raises(ConfigError, match="Did you mean 'frozen_lake'"):
        make_env("frozen_lak")


@pytest.mark.parametrize("name", ["turnwise.types:Task", "turnwise.envs.bandit:SPLITS", "builtins:dict"])
def test_make_env_refuses_what_is_no_environment(name: str) -> None:
    with pytest.raises(ConfigError, match=r"extends turnwise\.envs\.base\.BaseEnv"):
        make_env(name)


class Stepless(BaseEnv):
    def reset(self, seed: int | None = None, *, split: str = "train", dynamics_seed: int | None = None) -> str:
        return ""


class Unmakeable(Answering):
    def __init__(self, **params: object) -> None:
        raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Stepless", r"Stepless' has no step; a class that extends BaseEnv writes reset and step"),
        ("Unmakeable", r"Unmakeable' cannot be made with size: KeyError: 'no such thing'"),
    ],
)
def test_make_env_explains_an_authors_class_that_cannot_be_made(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(f"tests.unit.envs.test_boundary:{name}", size=3)


def test_an_environment_that_exits_ends_its_episode_only() -> None:
    class Exiting(Answering):
        def step(self, action: str) -> tuple[object, ...]:
            sys.exit(3)

    with pytest.raises(EnvError, match="SystemExit: 3"):
        step_env(Exiting("text"), "a")


def test_optional_parts_say_that_they_are_missing() -> None:
    env = Answering("text")
    for call in (env.render, env.oracle, env.snapshot, lambda: env.restore(None)):
        with pytest.raises(EnvError, match="Answering has no"):
            call()
    assert (env.action_names, env.instructions, env.legend, env.has_oracle) == (None, "", "", False)


# --- what a hostile author may hand over ------------------------------------------------------------------------------


class OddError(BaseException):
    """Neither an Exception nor Ctrl-C."""


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    "raised",
    [asyncio.CancelledError(), OddError("odd"), SpeechlessError(), GeneratorExit(), SystemExit(3), StopIteration()],
)
def test_whatever_an_author_raises_fails_one_call_and_nothing_else(raised: BaseException) -> None:
    env = Answering(raised)
    for call in (lambda: step_env(env, "go"), lambda: reset_env(env, 0)):
        with pytest.raises(EnvError, match=rf"Answering\..*failed: {type(raised).__name__}"):
            call()


def test_ctrl_c_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        step_env(Answering(KeyboardInterrupt()), "go")


def test_a_lone_surrogate_in_an_observation_becomes_the_replacement_character() -> None:
    """JSON and models can spell half a character; nothing that encodes text takes it."""
    assert reset_env(Answering("bad \ud800 text"), 0) == "bad \ufffd text"
    assert step_env(Answering(("a\udfff", 0.0, False, {})), "go").text == "a\ufffd"


@pytest.mark.parametrize("reward", [1e39, -1e300, 2e18])
def test_rewards_that_are_infinite_in_float32_are_refused_at_the_boundary(reward: float) -> None:
    with pytest.raises(RewardError, match=r"float32. Scale the rewards down"):
        step_env(Answering(("text", reward, False, {})), "go")


def test_an_observation_of_many_megabytes_is_refused() -> None:
    with pytest.raises(EnvError, match=r"5,000,000 characters; expected at most 4,000,000"):
        step_env(Answering(("x" * 5_000_000, 0.0, False, {})), "go")


@pytest.mark.parametrize("said", ["no", float("nan"), 1, None])
def test_a_success_that_is_no_truth_value_is_refused(said: object) -> None:
    with pytest.raises(EnvError, match="expected True or False"):
        step_env(Answering(("text", 0.0, True, {"success": said})), "go")


def test_numbers_of_thousands_of_digits_are_left_out_of_the_metrics() -> None:
    assert step_env(Answering(("text", 0.0, False, {"n": 10**5000, "m": 2})), "go").metrics == {"m": 2.0}

"""verifiers and gem-llm, from the real packages under a Python of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnwise.envs.isolation import IsolatedEnv, check_in_process, find_python
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError
from turnwise.run.api import train

from ...clock import HANG_S
from ...small_run import SMALL, without_plots
from .others_python import NEEDS_ENVS_OF_OTHERS, PYTHON, WORLDS

pytestmark = list(NEEDS_ENVS_OF_OTHERS)
SLOW_S = 10 * HANG_S
"""These packages import for long, and start programs of their own."""
GUESS = "gem:game:GuessTheNumber-v0-easy"


@pytest.fixture(scope="module", autouse=True)
def _worlds_can_be_found() -> Iterator[None]:
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WORLDS), before]))
    server = find_python(PYTHON)
    yield
    os.environ["PYTHONPATH"] = before
    server.close()


@contextmanager
def opened(name: str, **params: object) -> Iterator[IsolatedEnv]:
    env = IsolatedEnv(name, {"time_limit_s": SLOW_S, **params}, time_limit_s=SLOW_S, python=PYTHON)
    yield env
    env.close()


@contextmanager
def game(name: str, **params: object) -> Iterator[IsolatedEnv]:
    env = IsolatedEnv(name, params, time_limit_s=SLOW_S, python=PYTHON)
    yield env
    env.close()


# --- verifiers --------------------------------------------------------------------------------------------------------


def test_a_single_turn_world_is_asked_and_paid_by_its_rubric() -> None:
    with opened("verifiers:single_turn_world", options={"highest": 3}, success_above=1.0) as env:
        counts = env.num_tasks("train"), env.num_tasks("eval")
        assert counts == (8, 1)
        texts = {reset_env(env, seed) for seed in range(8)}
        assert len(texts) == 8
        assert reset_env(env, 0, split="eval") not in texts
        text = reset_env(env, 3)
        assert text.startswith("Say a number.\n\nWhat is ")
        a, b = (int(word.rstrip("?")) for word in text.split()[-3::2])
        right = step_env(env, str(a + b))
        assert (right.reward, right.done, right.is_success) == (2.5, True, True)
        assert right.metrics["reward_right"] == 2.0
        assert right.metrics["length"] == 1.0
        reset_env(env, 3)
        wrong = step_env(env, "thirty")
        assert (wrong.reward, wrong.is_success) == (0.0, False)


def test_a_fault_of_a_rubric_ends_one_episode() -> None:
    with opened("verifiers:single_turn_world") as env:
        reset_env(env, 1)
        with pytest.raises(EnvError, match="a fault of the rubric"):
            step_env(env, "fault")
        reset_env(env, 1)
        assert step_env(env, "0").done


def test_in_a_multi_turn_world_only_what_is_new_is_told() -> None:
    with opened("verifiers:multi_turn_world", max_tasks=50) as env:
        assert reset_env(env, 4).endswith("guess a number from 1 to 3.")
        told = step_env(env, "nine")
        assert told.text in ("No. Guess again.", "Not that. Guess again.")
        assert not told.done
        # An episode that is not played to its end is given up.
        text = reset_env(env, 5)
        number = int(text.split()[1].rstrip(":")) % 3 + 1
        won = step_env(env, str(number))
        assert (won.reward, won.terminated, won.is_success) == (1.0, True, True)


def test_the_limit_of_a_world_is_a_truncation() -> None:
    with opened("verifiers:multi_turn_world", max_tasks=50) as env:
        reset_env(env, 4)
        results = [step_env(env, "nine") for _ in range(4)]
        assert [result.done for result in results] == [False, False, False, True]
        assert results[-1].truncated


def test_tools_are_told_called_and_keep_their_state() -> None:
    with opened("verifiers:tool_world") as env:
        text = reset_env(env, 0)
        wanted = text.split()[-1].rstrip(".")
        assert "take(thing: string): Take a thing from the shelf." in env.instructions
        assert step_env(env, '{"name": "look", "arguments": {}}').text == "There are a lamp and a book."
        for broken in ('{"name": "lok"}', '{"name": "take", "arguments": [1]}', '{"name"'):
            assert not step_env(env, broken).is_valid
        both = "".join(
            f'<tool_call>{{"name": "take", "arguments": {{"thing": "{thing}"}}}}</tool_call>'
            for thing in ("cup", wanted)
        )
        assert f"You have cup, {wanted}." in step_env(env, both).text
        done = step_env(env, "I have it.")
        assert (done.reward, done.done) == (1.0, True)


def test_a_tool_that_keeps_nothing_is_called_and_its_result_told() -> None:
    with opened("verifiers:plain_tool_world") as env:
        numbers = reset_env(env, 0).rstrip("?").split()
        told = step_env(env, json.dumps({"name": "add", "arguments": {"a": int(numbers[-3]), "b": 40}}))
        assert (told.text, told.reward, told.done) == (str(int(numbers[-3]) + 40), 0.0, False)
        assert step_env(env, told.text).reward == 1.0


def test_the_chances_of_a_tool_follow_the_seed() -> None:
    with opened("verifiers:plain_tool_world", eval_share=0.5) as env:
        drawn = []
        for seed in (0, 1, 0):
            reset_env(env, seed)
            drawn.append(step_env(env, '{"name": "draw"}').text)
    assert drawn[0] == drawn[2] != drawn[1]


KINDS = ("single_turn_world", "multi_turn_world", "plain_tool_world", "tool_world")


@pytest.mark.parametrize("name", KINDS)
def test_a_world_of_verifiers_keeps_the_contract(name: str) -> None:
    params = {"max_tasks": 40, "time_limit_s": SLOW_S}
    report = check_in_process(PYTHON, f"verifiers:{name}", params, num_episodes=2)
    assert report.ok, report.failures
    unknown = set() if "tool" in name else {"actions"}
    assert {check.name for check in report.not_made} == {"oracle", "snapshot"} | unknown


@pytest.mark.parametrize(
    ("name", "params", "cause"),
    [
        ("verifiers:no_such_world", {}, "no_such_world"),
        ("verifiers:two_agents_world", {}, r"2 agents \(first, second\); expected one"),
        ("verifiers:single_turn_world", {"options": {"hihgest": 3}}, "hihgest"),
        ("verifiers:single_turn_world", {"max_tasks": 1}, "expected at least 2"),
        ("gem:game:GuessTheNumber-v0-eazy", {}, "Did you mean"),
        (GUESS, {"options": {"min_number": "x"}}, "cannot be made with the options"),
    ],
)
def test_what_cannot_be_made_is_told(name: str, params: dict[str, object], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        IsolatedEnv(name, params, time_limit_s=SLOW_S, python=PYTHON)


# --- gem-llm ----------------------------------------------------------------------------------------------------------


def test_a_game_of_gem_is_played_in_and_out_of_a_box() -> None:
    with game(GUESS) as env:
        assert "between 1 and 10" in reset_env(env, 0)
        first = step_env(env, "5")
        assert "you guessed 5" in first.text
        assert first.text.endswith("Enter your next guess.")
        reset_env(env, 0)
        assert step_env(env, "I say \\boxed{5}").text == first.text
        reset_env(env, 0)
        assert not step_env(env, "no number").is_valid
    with game(GUESS, should_box=False) as env:
        reset_env(env, 0)
        assert not step_env(env, "5").is_valid


def test_a_win_is_a_success_and_the_last_turn_an_end() -> None:
    with game(GUESS) as env:
        ends = []
        for guess in range(1, 11):
            reset_env(env, 0)
            ends.append(step_env(env, str(guess)))
        assert [end.is_success for end in ends].count(True) == 1
        assert {end.reward for end in ends} == {0.0, 1.0}
        reset_env(env, 0)
        wrong = next(str(guess) for guess, end in enumerate(ends, start=1) if not end.is_success)
        last = [step_env(env, wrong) for _ in range(4)][-1]
        assert last.done
        assert last.is_success is False


@pytest.mark.parametrize("name", [GUESS, "gem:game:Sudoku-v0-easy", "gem:rg:leg_counting"])
def test_a_world_of_gem_keeps_the_contract(name: str) -> None:
    report = check_in_process(PYTHON, name, {}, num_episodes=2)
    assert report.ok, report.failures


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [*(f"verifiers:{kind}" for kind in KINDS), GUESS],
)
def test_two_steps_are_trained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    recipe = {
        "env": {"type": name, **({"time_limit_s": SLOW_S} if name.startswith("verifiers:") else {})},
        "context": {"answer": {"type": "plain"}, "max_response_tokens": 4, "max_tokens": 1024},
        "credit": {"type": "grpo"},
        "rollout": {"isolation": {"type": "process", "time_limit_s": SLOW_S, "python": PYTHON}},
    }
    sizes = ["rollout.groups=2", "rollout.group_size=2", "rollout.max_turns=2", "eval.episodes=1"]
    run = train(recipe, [*SMALL, *sizes], run_dir=tmp_path / "run")
    assert run.summary.steps == 2
    assert run.summary.failures == {}

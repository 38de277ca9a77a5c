"""The game itself: texts, rewards, attempts, splits, and what is said to people."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.check import check_env
from turnwise.envs.countdown import Countdown
from turnwise.envs.countdown.puzzle import CountdownParams, Puzzle, draw_puzzle, solve, split_of
from turnwise.errors import ConfigError, EnvError, TaskError


def puzzle_at(numbers: tuple[int, ...], target: int, **params: object) -> Countdown:
    """A puzzle of our choice, by way of the public snapshots."""
    env = Countdown(**params)
    env.restore((Puzzle(numbers, target), (), "playing"))
    return env


def test_keeps_the_contract() -> None:
    report = check_env(lambda: Countdown(attempts=3), num_episodes=10)
    assert report.ok, report.failures


def test_the_right_value_pays_one_and_ends() -> None:
    env = puzzle_at((3, 7, 25), 46)
    assert env.render() == "Numbers: 3 7 25 Target: 46"
    text, reward, done, info = env.step(" 25 + 7*3 ")
    assert (text, reward, done) == ("Numbers: 3 7 25 Target: 46\n25 + 7*3 makes 46.", 1.0, True)
    assert info == {"success": True, "action_is_valid": True, "action_is_effective": True, "difficulty": "3 numbers"}
    with pytest.raises(EnvError, match="episode is over"):
        env.step("25 + 7 * 3")


def test_the_right_numbers_pay_a_little() -> None:
    _, reward, done, info = puzzle_at((3, 7, 25), 46).step("25 + 7 + 3")
    assert (reward, done) == (0.1, True)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True, "difficulty": "3 numbers"}
    assert puzzle_at((3, 7, 25), 46, numbers_reward=0.4).step("25 + 7 + 3")[1] == 0.4


def test_division_by_zero_is_a_wrong_value() -> None:
    text, reward, done, info = puzzle_at((5, 2, 2), 7).step("5 / (2 - 2)")
    assert (text.split("\n")[1], reward, done) == ("5 / (2 - 2) makes no number.", 0.1, True)
    assert info["success"] is False


@pytest.mark.parametrize("answer", ["25 + 7", "25 + 7 + 3 + 3", "46", "25 + 7 * 4", "25 + 7 * 3 = 46", "", "abc"])
def test_other_answers_pay_nothing_and_change_nothing(answer: str) -> None:
    env = puzzle_at((3, 7, 25), 46)
    assert env.step(answer) == (
        "Numbers: 3 7 25 Target: 46",
        0.0,
        False,
        {"success": False, "action_is_valid": False, "action_is_effective": False, "difficulty": "3 numbers"},
    )
    assert env.step("25 + 7 * 3")[1] == 1.0


@given(st.text())
def test_any_text_is_answered(answer: str) -> None:
    _, reward, done, info = puzzle_at((3, 7, 25), 46).step(answer)
    assert (reward, done, info["action_is_valid"]) == (0.0, False, False)


def test_the_return_of_several_attempts_is_the_worth_of_the_best() -> None:
    env = puzzle_at((3, 7, 25), 46, attempts=3)
    text, reward, done, _ = env.step("25 + 7 + 3")
    assert (text, reward, done) == ("Numbers: 3 7 25 Target: 46\n25 + 7 + 3 makes 35.", 0.1, False)
    assert env.step("7 / 3 - 25")[:3] == (text + "\n7 / 3 - 25 makes -68/3.", 0.0, False)
    last = env.step("25 + 7 * 3")
    assert last[1:3] == (pytest.approx(0.9), True)
    assert last[3]["success"] is True


def test_attempts_run_out() -> None:
    env = puzzle_at((3, 7, 25), 46, attempts=2)
    assert env.step("25 + 7 + 3")[1:3] == (0.1, False)
    assert env.step("25 + 7 + 3")[1:3] == (0.0, True)
    assert "2 attempts" in env.instructions
    assert "attempts" not in Countdown().instructions


def test_random_puzzles_keep_every_setting_and_are_solved_by_the_oracle() -> None:
    limits = {"min_numbers": 2, "max_numbers": 5, "max_number": 20, "min_target": 30, "max_target": 60}
    env = Countdown(**limits, operators="+*")
    counts = set()
    for seed in range(150):
        env.reset(seed, split=("train", "eval")[seed % 2])
        numbers, target = env.puzzle
        counts.add(len(numbers))
        assert all(1 <= number <= 20 for number in numbers)
        assert 30 <= target <= 60
        answer = env.oracle()
        assert not set(answer) & {"-", "/"}
        assert env.step(answer)[1] == 1.0
    assert counts == {2, 3, 4, 5}


def test_every_operator_is_needed_by_some_puzzle() -> None:
    params = CountdownParams(max_numbers=3)
    for missing in "+-*/":
        others = "+-*/".replace(missing, "")
        puzzles = (draw_puzzle(params, seed, "train") for seed in range(400))
        assert any(solve(puzzle.numbers, puzzle.target, others) is None for puzzle in puzzles)


def test_train_and_eval_never_share_a_puzzle_in_any_order() -> None:
    params = CountdownParams(max_number=9, max_numbers=3)
    drawn = {split: {_key(draw_puzzle(params, seed, split)) for seed in range(1500)} for split in ("train", "eval")}
    assert len(drawn["train"]) > 500
    assert not drawn["train"] & drawn["eval"]


def _key(puzzle: Puzzle) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(puzzle.numbers)), puzzle.target


def test_eval_share_is_the_share_of_puzzles() -> None:
    puzzles = [Puzzle((first, second), target) for first in range(50) for second in range(first) for target in (7, 8)]
    for share in (0.1, 0.5):
        num_eval = sum(split_of(puzzle, share) == "eval" for puzzle in puzzles)
        assert num_eval / len(puzzles) == pytest.approx(share, abs=0.03)
    with pytest.raises(TaskError, match=r"'test'.*train, eval"):
        Countdown().reset(0, split="test")


def test_ten_thousand_random_answers() -> None:
    env, rng = Countdown(attempts=4, max_number=9), random.Random(0)
    done, seed = True, 0
    total = 0.0
    for _ in range(10_000):
        if done:
            env.reset(seed)
            seed, total = seed + 1, 0.0
        numbers = rng.sample(env.puzzle.numbers, k=len(env.puzzle.numbers))
        answer = str(numbers[0]) + "".join(rng.choice("+-*/+-*/)(") + str(number) for number in numbers[1:])
        _, reward, done, info = env.step(answer)
        total += reward
        assert total == pytest.approx(1.0 if info["success"] else 0.1 if env.snapshot()[1] else 0.0)  # type: ignore[index]
    assert seed > 500


def test_impossible_settings_are_a_task_error_that_names_them() -> None:
    with pytest.raises(TaskError, match=r"max_number=2.*min_target=5000.*Loosen"):
        Countdown(max_number=2, min_target=5000, max_target=6000).reset(0)


def test_a_puzzle_without_solution_has_no_oracle() -> None:
    with pytest.raises(EnvError, match=r"no expression over \[1, 1\] makes 7"):
        puzzle_at((1, 1), 7).oracle()


def test_puzzles_are_pinned() -> None:
    """A change here changes every published number: seeds must keep their meaning between releases."""
    env = Countdown()
    texts = [env.reset(seed, split=split) for split, seed in (("train", 0), ("train", 1), ("eval", 0))]
    assert texts == [
        "Numbers: 22 50 57 Target: 85",
        "Numbers: 77 3 35 Target: 45",
        "Numbers: 68 59 22 Target: 31",
    ]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_numbrs": 4}, "Did you mean 'max_numbers'?"),
        ({"max_numbers": 7}, "max_numbers: 7 given"),
        ({"min_numbers": 5}, "max_numbers 4 is below min_numbers 5"),
        ({"max_target": 3}, "max_target 3 is below min_target 10"),
        ({"operators": "+%"}, "expected some of + - * /"),
        ({"operators": "++"}, "each at most once"),
        ({"numbers_reward": 1.0}, "numbers_reward: 1.0 given"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Countdown(**params)
    assert message in str(caught.value)

"""MetaMathQA as a world: attempts and rewards, built-in word problems, settings, the contract."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.envs.check import check_env
from turnwise.envs.check_episodes import GARBAGE
from turnwise.envs.metamathqa import MetaMathQA
from turnwise.envs.metamathqa.problems import OPERATIONS, apply, draw_story
from turnwise.errors import ConfigError, EnvError, TaskError


def test_keeps_the_contract() -> None:
    report = check_env(MetaMathQA)
    assert report.ok, report.failures


def test_each_attempt_is_worth_half_of_the_one_before() -> None:
    env = MetaMathQA(max_attempts=4)
    for num_wrong, reward in enumerate((1.0, 0.5, 0.25, 0.125)):
        env.reset(3)
        for _ in range(num_wrong):
            text, paid, done, info = env.step("-1")
            assert (text, paid, done) == ("Wrong. Try again.", 0.0, False)
            assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
        text, paid, done, info = env.step(env.oracle())
        assert (text, paid, done, info["success"]) == ("Right.", reward, True, True)


def test_the_attempts_end() -> None:
    env = MetaMathQA(max_attempts=2)
    env.reset(0)
    assert env.step("-1")[2] is False
    assert env.step("-1")[:3] == ("Wrong.", 0.0, True)
    with pytest.raises(EnvError, match="episode is over"):
        env.step("-1")


@pytest.mark.parametrize(("decay", "second"), [(0.0, 0.0), (0.9, 0.9), (1.0, 1.0)])
def test_decay_is_a_setting(decay: float, second: float) -> None:
    env = MetaMathQA(decay=decay)
    env.reset(1)
    assert env.step(env.oracle())[1] == 1.0
    env.reset(1)
    env.step("-1")
    assert env.step(env.oracle())[1] == second


def test_the_question_is_repeated_where_wished() -> None:
    env = MetaMathQA(should_repeat_question=True)
    question = env.reset(0)
    assert env.step("-1")[0] == f"Wrong. Try again.\n{question}"
    assert env.render() == f"Wrong. Try again.\n{question}"


def test_senseless_answers_use_up_no_attempt() -> None:
    env = MetaMathQA(max_attempts=1)
    question = env.reset(0)
    for garbage in ("", " \n", "[[(<{", "5" * 201, "left right " * 5_000):
        text, reward, done, info = env.step(garbage)
        assert (text, reward, done, info["action_is_valid"]) == (question, 0.0, False, False)
    assert env.step(env.oracle())[1] == 1.0


@given(st.text(max_size=100))
def test_no_answer_raises(answer: str) -> None:
    env = MetaMathQA()
    env.reset(0)
    assert env.step(answer)[1] in (0.0, 1.0)


def test_ten_thousand_random_steps() -> None:
    env, rng = MetaMathQA(), random.Random(0)
    num_right, done = 0, True
    for step in range(10_000):
        if done:
            env.reset(step)
        answer = rng.choice(GARBAGE) if step % 100 == 0 else str(rng.randint(1, 20))
        _, reward, done, info = env.step(answer)
        assert (reward > 0) == info["success"]
        num_right += bool(info["success"])
    assert 300 < num_right < 2_000


# --- word problems ---------------------------------------------------------------------------------------------------


def solve(question: str) -> set[int]:
    """All answers from 1 to 60 that fit the story, found by trying; reads the sentences on its own."""
    *told, last = re.split(r"(?<=[.?]) ", question.removesuffix(" What was x?"))
    end = None if last.startswith("How many") else int(re.findall(r"\d+", last)[0])
    events = [(_operation(sentence), re.findall(r"\b(?:\d+|x)\b", sentence)[0]) for sentence in told]
    fitting = set()
    for x in range(1, 61):
        amount: float = 0
        for operation, word in events:
            number = x if word == "x" else int(word)
            amount = {"+": amount + number, "-": amount - number, "*": amount * number, "/": amount / number}[operation]
        if end is None:
            return {round(amount)}
        if amount == end:
            fitting.add(x)
    return fitting


def _operation(sentence: str) -> str:
    if "times as many" in sentence:
        return "*"
    if "bags" in sentence or "share" in sentence:
        return "/"
    return "-" if re.search(r"loses|sells|gives \w+ to ", sentence) else "+"


@pytest.mark.parametrize("num_events", [1, 3])
def test_the_answer_is_the_only_one_that_fits_the_words(num_events: int) -> None:
    env = MetaMathQA(num_events=num_events, max_number=30)
    num_backward = 0
    for seed in range(400):
        question = env.reset(seed)
        assert solve(question) == {int(env.oracle())}, question
        num_backward += question.endswith("What was x?")
    assert 150 < num_backward < 250


def test_no_number_leaves_its_bounds() -> None:
    rng = random.Random(1)
    seen = set()
    for _ in range(2_000):
        story = draw_story(rng, operations=OPERATIONS, num_events=2, max_number=12)
        assert story is not None
        amount = story.start
        for operation, number in story.events:
            assert operation != "divide" or amount % number == 0
            amount = apply(operation, amount, number)
            seen.add(operation)
            assert 1 <= amount <= 12
            assert 1 <= number <= 12
        assert amount == story.end
    assert seen == set(OPERATIONS)


def first_texts(env: MetaMathQA, split: str = "train", num_seeds: int = 200) -> list[str]:
    return [env.reset(seed, split=split) for seed in range(num_seeds)]


def numbers_of(env: MetaMathQA, split: str) -> set[tuple[int, ...]]:
    """What is told and what is asked for, for each problem, whichever of them is hidden."""
    found = set()
    for seed in range(600):
        found.add((*map(int, re.findall(r"\d+", env.reset(seed, split=split))), int(env.oracle())))
    return found


def test_splits_share_no_numbers_or_no_wording() -> None:
    env = MetaMathQA(max_number=8, operations=("add",), backward_rate=0.0)
    train, held_out = (numbers_of(env, split) for split in ("train", "eval"))
    assert train.isdisjoint(held_out)
    assert len(train | held_out) == 7 * 8 / 2
    env = MetaMathQA(max_number=8, operations=("add",), held_out="wording")
    assert set(first_texts(env)).isdisjoint(first_texts(env, "eval"))
    assert not numbers_of(env, "train").isdisjoint(numbers_of(env, "eval"))
    with pytest.raises(TaskError, match="no split 'test'"):
        env.reset(0, split="test")


def test_a_seed_is_one_problem_and_seeds_differ() -> None:
    assert first_texts(MetaMathQA()) == first_texts(MetaMathQA())
    assert len(set(first_texts(MetaMathQA()))) > 190


def test_settings_of_word_problems_have_their_effect() -> None:
    def has(word: str, **params: object) -> set[bool]:
        return {word in text for text in first_texts(MetaMathQA(**params))}

    assert has("times as many", operations=["multiply"]) == {True}
    assert has("times as many", operations=["add"]) == {False}
    assert has("What was x?", backward_rate=0.0) == {False}
    assert has("What was x?", backward_rate=1.0) == {True}
    assert {text.count(".") for text in first_texts(MetaMathQA(num_events=4, backward_rate=0.0))} == {5}
    largest = [
        max(int(n) for t in first_texts(MetaMathQA(max_number=m)) for n in re.findall(r"\d+", t)) for m in (5, 50)
    ]
    assert largest == [5, 50]


def test_the_grader_is_a_setting() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    for grader, is_right in (("exact", False), ("math_verify", True)):
        env = MetaMathQA(grader=grader, backward_rate=0.0)
        env.reset(0)
        assert env.step(f"{env.oracle()}+0")[3]["success"] is is_right


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (
            {"max_number": 2, "operations": ["divide"], "num_events": 3},
            TaskError,
            "no word problem for the split 'train'",
        ),
        ({"operations": ["power"]}, ConfigError, "operations"),
        ({"operations": []}, ConfigError, "operations"),
        ({"max_atempts": 2}, ConfigError, "Did you mean 'max_attempts'?"),
        ({"grader": "eval"}, ConfigError, "'exact' or 'math_verify'"),
    ],
)
def test_wrong_settings_are_explained(params: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        MetaMathQA(**params).reset(0)
    assert message in str(caught.value)

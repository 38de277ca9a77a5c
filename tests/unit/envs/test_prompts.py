"""The world of single prompts, and the built-in letters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from turnwise.envs.check import check_env
from turnwise.envs.prompts import Prompts
from turnwise.envs.prompts.sources import (
    EVAL_SHARE,
    FLAW_RATES,
    TASKS,
    draw_preferences,
    letter_prompts,
    training_preferences,
    write_letter,
)
from turnwise.errors import ConfigError, EnvError, TaskError


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f'{{"prompt": "Prompt {n}?", "response": "Reply {n}."}}\n' for n in [*range(20), 3, 4]))
    return str(path)


def test_a_reply_ends_the_episode_without_a_reward() -> None:
    env = Prompts()
    env.reset(0)
    text, reward, done, info = env.step("anything")
    assert (text, reward, done) == ("", 0.0, True)
    assert info == {"success": False, "action_is_valid": True, "action_is_effective": True}
    with pytest.raises(EnvError, match="over"):
        env.step("more")


def test_a_blank_reply_is_no_reply() -> None:
    env = Prompts()
    prompt = env.reset(0)
    text, reward, done, info = env.step(" \n")
    assert (text, reward, done, info["action_is_valid"]) == (prompt, 0.0, False, False)
    assert env.step("reply")[2]


def test_seeds_count_through_the_split(file: str) -> None:
    env = Prompts(path=file, eval_share=0.3)
    for split in ("train", "eval"):
        texts = [env.reset(seed, split=split) for seed in range(50)]
        size = len(set(texts))
        assert texts[:size] == sorted(set(texts), key=texts.index)
        assert texts == [texts[seed % size] for seed in range(50)]
    assert {env.reset(s) for s in range(50)}.isdisjoint({env.reset(s, split="eval") for s in range(50)})
    with pytest.raises(TaskError, match="no split 'test'"):
        env.reset(0, split="test")


def test_the_oracle_says_the_reference_response(file: str, tmp_path: Path) -> None:
    env = Prompts(path=file)
    assert env.has_oracle
    for seed in range(5):
        number = env.reset(seed).removeprefix("Prompt ").removesuffix("?")
        assert env.oracle() == f"Reply {number}."
    (tmp_path / "some.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "c"}')
    for without in (tmp_path / "some.jsonl", Path(file)):
        bare = Prompts(path=str(without), response_field="response" if without.name == "some.jsonl" else "none")
        assert not bare.has_oracle
    bare.reset(0)
    with pytest.raises(EnvError, match="no oracle"):
        bare.oracle()


def test_the_description_counts_prompts_and_duplicates(file: str) -> None:
    env = Prompts(path=file, eval_share=0.5)
    train, held_out = ({env.reset(seed, split=split) for seed in range(40)} for split in ("train", "eval"))
    assert env.description == (
        f"{file}: {len(train)} prompts for training and {len(held_out)} for evaluation; 2 duplicates dropped."
    )
    assert "dropped" not in Prompts().description


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_must_leave_something(share: float) -> None:
    with pytest.raises(ConfigError, match="eval_share"):
        Prompts(eval_share=share)


def test_it_passes_the_checks(file: str) -> None:
    for make in (Prompts, lambda: Prompts(path=file), lambda: Prompts(path=file, response_field="none")):
        report = check_env(make, num_episodes=10)
        assert report.ok, report.failures


# --- the built-in letters --------------------------------------------------------------------------------------------


def test_there_are_a_few_hundred_prompts_of_few_words() -> None:
    rows = (*letter_prompts(EVAL_SHARE).train, *letter_prompts(EVAL_SHARE).eval)
    assert 200 <= len(rows) <= 400
    assert letter_prompts(EVAL_SHARE).num_duplicates == 0
    words = {word for row in rows for word in f"{row.prompt} {row.response}".split()}
    assert len(words) < 80


def test_every_flaw_shows_and_a_good_letter_has_none() -> None:
    rng = random.Random(0)
    for task in TASKS[:: len(TASKS) // 9]:
        good = write_letter(task, frozenset(), rng)
        assert task.name in good
        assert task.thing in good
        letters = {good} | {write_letter(task, frozenset([flaw]), rng) for flaw in FLAW_RATES}
        assert len(letters) == 1 + len(FLAW_RATES)


def test_reference_responses_are_of_mixed_quality() -> None:
    good = {task.prompt: write_letter(task, frozenset(), random.Random(0)) for task in TASKS}
    rows = letter_prompts(EVAL_SHARE).train
    share = sum(row.response == good[row.prompt] for row in rows) / len(rows)
    assert 0.02 < share < 0.3
    for start in ("Dear", "Hey"):
        assert sum(str(row.response).startswith(start) for row in rows) / len(rows) > 0.25


def test_preferences_are_about_prompts_of_their_split() -> None:
    prompts = letter_prompts(EVAL_SHARE)
    held_out = {row.prompt for row in prompts.eval}
    learnt = {side[0].content for pair in training_preferences() for side in pair}
    assert learnt == {row.prompt for row in prompts.train}
    pairs = draw_preferences(prompts, split="eval", num_pairs=300, seed=1)
    assert {side[0].content for pair in pairs for side in pair} == held_out
    for chosen, rejected in pairs:
        assert chosen[0] == rejected[0]
        assert chosen[1] != rejected[1]
    good = {task.prompt: write_letter(task, frozenset(), random.Random(0)) for task in TASKS}
    assert any(chosen[1].content == good[chosen[0].content] for chosen, _ in pairs)
    assert not any(rejected[1].content == good[rejected[0].content] for _, rejected in pairs)

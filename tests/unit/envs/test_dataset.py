"""Rows of a dataset as tasks, from files and from the package `datasets`, with a reward function that sees the row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from turnwise.checks.settings import find_unused_settings
from turnwise.config.load import load_settings
from turnwise.envs.base import make_env
from turnwise.envs.check import check_env
from turnwise.envs.safe_calls import reset_env, step_env
from turnwise.errors import ConfigError, EnvError, TaskError
from turnwise.run.api import train

from ...small_run import SMALL, without_plots

ROWS = [{"question": f"What is {a} + {a}?", "answer": f"It is so. #### {2 * a}", "level": a % 2} for a in range(20)]
SCORE = "tests.unit.envs.test_dataset:score"


def score(reply: str, row: Mapping[str, Any]) -> float:
    """Like many on the hub: the answer stands behind a mark, and a field says what a task is worth."""
    if reply == "fault":
        raise RuntimeError("a fault of the function")
    return (1.0 + row["level"]) * float(reply.strip() == row["answer"].rpartition("#### ")[2])


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return str(file)


def make(path: str, **params: object) -> Any:
    return make_env("dataset", path=path, prompt_field="question", response_field="answer", **params)


def test_a_function_sees_the_reply_and_the_row(path: str) -> None:
    env = make(path, reward=SCORE)
    for seed in range(env.num_tasks()):
        text = reset_env(env, seed)
        number = int(text.split()[2])
        assert env.raw_task(seed) == ROWS[number]
        right = step_env(env, str(2 * number))
        assert (right.reward, right.is_success, right.done) == (1.0 + number % 2, True, True)
        reset_env(env, seed)
        wrong = step_env(env, "99")
        assert (wrong.reward, wrong.is_success) == (0.0, False)


def test_success_is_above_a_border(path: str) -> None:
    env = make(path, reward=SCORE, success_above=1.5)
    found = set()
    for seed in range(env.num_tasks()):
        number = int(reset_env(env, seed).split()[2])
        found.add((number % 2, step_env(env, str(2 * number)).is_success))
    assert found == {(0, False), (1, True)}


def test_without_a_function_the_response_is_right(path: str) -> None:
    env = make(path)
    number = int(reset_env(env, 3).split()[2])
    assert step_env(env, f" {ROWS[number]['answer']}\n").reward == 1.0
    assert env.has_oracle
    assert not make(path, reward=SCORE).has_oracle


def test_a_fault_of_the_function_ends_one_episode(path: str) -> None:
    env = make(path, reward=SCORE)
    reset_env(env, 0)
    with pytest.raises(EnvError, match="a fault of the function"):
        step_env(env, "fault")
    reset_env(env, 0)
    assert step_env(env, "1").done


@pytest.mark.parametrize(
    ("reward", "cause"),
    [("score", "package.module:function"), ("json:dumps", "cannot be called so"), (f"{__name__}:ROWS", "be called")],
)
def test_what_is_no_reward_function_is_told(path: str, reward: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=f"env.reward.*{cause}"):
        make(path, reward=reward)


def test_it_keeps_the_contract_and_pays_itself(path: str) -> None:
    report = check_env(lambda: make(path, reward=SCORE), num_episodes=4)
    assert report.ok, report.failures


# --- the package datasets ---------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> str:
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    parts = {"train": datasets.Dataset.from_list(ROWS[:15]), "test": datasets.Dataset.from_list(ROWS[15:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    return str(tmp_path / "saved")


def test_a_saved_dataset_is_read_by_its_splits(saved: str) -> None:
    whole = make(saved, reward=SCORE, eval_split="test")
    assert (whole.num_tasks("train"), whole.num_tasks("eval")) == (15, 5)
    assert {whole.raw_task(seed, "eval")["question"] for seed in range(5)} == {row["question"] for row in ROWS[15:]}
    shared = make(saved, reward=SCORE, eval_share=0.3)
    assert shared.num_tasks("train") + shared.num_tasks("eval") == 15
    turned = make(saved, reward=SCORE, train_split="test", eval_split="train")
    assert (turned.num_tasks("train"), turned.num_tasks("eval")) == (5, 15)


def test_a_saved_dataset_keeps_the_contract(saved: str) -> None:
    report = check_env(lambda: make(saved, reward=SCORE, eval_split="test"), num_episodes=3)
    assert report.ok, report.failures


def test_a_folder_of_files_is_a_dataset_too(path: str, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="needs the extra datasets")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.jsonl").write_text(Path(path).read_text())
    env = make(str(folder), reward=SCORE)
    assert env.num_tasks("train") + env.num_tasks("eval") == 20


def test_a_dataset_that_cannot_be_loaded_is_told(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        TaskError, match=r"env.path: '.*saved' cannot be loaded with the split 'valid'.*env.train_split"
    ):
        make(saved, train_split="valid")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TaskError, match=r"env.path: 'hf:nobody/nothing' cannot be loaded.*Check the name"):
        make("hf:nobody/nothing")
    with pytest.raises(ConfigError, match="eval_split names the rows"):
        make(saved, eval_path="other.jsonl")


def test_settings_of_datasets_do_nothing_for_a_file(path: str) -> None:
    env = {"type": "dataset", "path": path, "prompt_field": "question", "subset": "main", "eval_split": "test"}
    notes = find_unused_settings(load_settings({"env": env}))
    assert [note.partition(" ")[0] for note in notes if note.startswith("env.")] == ["env.subset", "env.eval_split"]


@pytest.mark.slow
def test_two_steps_are_trained(saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plots(monkeypatch)
    recipe = {
        "env": {"type": "dataset", "path": saved, "prompt_field": "question", "reward": SCORE},
        "context": {"answer": {"type": "plain"}, "max_response_tokens": 4},
        "credit": {"type": "grpo"},
    }
    run = train(recipe, SMALL, run_dir=tmp_path / "run")
    assert run.summary.steps == 2
    assert run.summary.failures == {}

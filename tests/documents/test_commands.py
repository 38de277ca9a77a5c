"""The command lines of the documents, with our command in place of theirs, train two updates."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.small_run import SMALL_MODEL, without_plots
from turnwise.cli import main

from .blocks import needs_documents, read_blocks

SHORT = [*SMALL_MODEL, "learn.steps=2", "rollout.groups=1", "rollout.group_size=2", "eval.episodes=2"]
SHORT = [*SHORT, "report.tensorboard=false", "learn.minibatches=1"]
OURS = [
    ["--multi_turn", "true", "--bi_level_gae", "true", "--max_turn", "3", "--learning_rate", "5e-7"],
    ["--train_cfgs.multi_turn", "true", "--train_cfgs.bi_level_gae", "true", "--train_cfgs.max_turn", "3"],
    ["--train_cfgs.multi_turn", "true", "--env_cfgs.env_name", "Sokoban"],
    ["--train_cfgs.multi_turn", "false"],
    ["--config-name", "multi_turn_ppo_env_reward_config"],
    ["--config-name", "mine", "--output_dir", "out", "--model_name_or_path", "tiny"],
    ["--config", "configs/mine.yaml", "+algorithm.bi_level_gae=true", "trainer.test_freq=-1"],
]
MINE = "train_cfgs: {multi_turn: true}\nenv_cfgs: {env_name: FrozenLake}\nlearn: {critic: {type: value_head}}\n"


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(MINE)
    without_plots(monkeypatch)
    return tmp_path


def short_of(words: list[str]) -> list[str]:
    # The lesson at the start is most of a recipe's time.
    has_lesson = not any(word.startswith("--config") for word in words) or "multi_turn_ppo_env_reward_config" in words
    return [*SHORT, *(["warm_start.episodes=6", "warm_start.steps=2"] if has_lesson else [])]


@pytest.mark.slow
@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_flags_as_the_documents_type_them_train(words: list[str], at_home: Path) -> None:
    assert main(["train", *words, *short_of(words)]) == 0
    (run,) = (at_home / ("out" if "--output_dir" in words else "runs")).iterdir()
    assert (run / "summary.json").is_file()


def command_lines() -> list[str]:
    """Those that train, or test a set-up; not those that install or fetch."""
    joined = "\n".join(read_blocks("bash").values()).replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    return sorted({line for line in lines if re.match(r"(python|trinity) ", line) and "get_alfworld_data" not in line})


def as_ours(line: str) -> list[str]:
    """The same words after our command; the file a command names is one that is here."""
    words = shlex.split(line)
    flags = words[
        words.index("--config")
        if "--config" in words
        else next((i for i, w in enumerate(words) if w.startswith("--")), len(words)) :
    ]
    if not flags:
        return ["doctor", "--config", "configs/mine.yaml"]
    flags = ["configs/mine.yaml" if word.endswith(".yaml") else word for word in flags]
    return ["train", *("FrozenLake" if word == "your_environment" else word for word in flags)]


@needs_documents
@pytest.mark.slow
@pytest.mark.parametrize("line", command_lines())
def test_a_command_of_the_documents_runs(line: str) -> None:
    words = as_ours(line)
    assert main([*words, *short_of(words)]) == 0

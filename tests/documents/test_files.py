"""Every config of the documents trains two updates as it stands; only paths of models and data are others.

Sizes are made small by overrides in our words, so that a test takes a moment.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import turnwise as tw
from tests.small_run import SMALL_MODEL, without_plots
from tests.unit.envs.alfworld_games import GAMES, unpack_games
from turnwise.config.load import translate_file

from .blocks import COPIES, needs_documents, read_blocks

BLOCKS = read_blocks("yaml")
SHORT = [
    *SMALL_MODEL,
    "learn.steps=2",
    "learn.minibatches=1",
    "rollout.groups=1",
    "rollout.group_size=2",
    "context.max_tokens=1500",
    "context.max_response_tokens=4",
    "report.tensorboard=false",
]
PLACEHOLDERS = {
    r"Qwen/Qwen2.5-[\w.]+B-Instruct": "tiny",
    r"env_config_for_agent_\d": "FrozenLake",
    r"'?examples/grpo_alfworld/alfworld_data'?": "households",
}
"""Paths of models and data, and names that stand for the reader's own."""


def train_two_updates(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tw.Run:
    for pattern, ours in PLACEHOLDERS.items():
        text = re.sub(pattern, ours, text)
    file = folder / "theirs.yaml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    if "households" in text:
        _write_households(folder)
    without_plots(monkeypatch)
    translation = translate_file(file)
    assert translation is not None
    assert translation.problems == []
    epochs = ["tasks.epochs=null"] if "tasks.epochs" in translation.settings else []
    batch = ["buffer.train_batch_size=60"] if "buffer.train_batch_size" in translation.settings else []
    turns = ["rollout.max_turns=3"] if "default_workflow_type" in text else []
    evaluated = ["eval.episodes=2"] if "eval.episodes" not in translation.settings else []
    return tw.train(file, [*SHORT, *epochs, *batch, *turns, *evaluated], run_dir=folder / "run")


def _write_households(folder: Path) -> None:
    """Rows as the original's data script writes them, with some of its games; nothing where those are not here."""
    if not GAMES.is_dir():
        return
    games = unpack_games(folder / "games")
    rows = folder / "households"
    rows.mkdir()
    for split, name in {"train": "train", "test": "valid_seen"}.items():
        files = sorted(games.rglob(f"{name}/**/game.tw-pddl"))[:4]
        lines = [json.dumps({"game_file": str(file), "target": ""}) for file in files]
        (rows / f"{split}.jsonl").write_text("\n".join(lines))


def check_run(run: tw.Run) -> None:
    assert run.summary.steps == 2
    steps = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert any("learn/policy_loss" in step for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(file.stem for file in COPIES.glob("*.yaml")))
def test_a_layout_of_the_documents_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (COPIES / f"{name}.yaml").read_text()
    # A clone alone has no games of the original; without a path, rooms are made.
    check_run(
        train_two_updates(
            text if GAMES.is_dir() else text.replace("path: households", "path: null"), tmp_path, monkeypatch
        )
    )


@needs_documents
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_a_config_of_the_documents_trains_as_it_stands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_run(train_two_updates(BLOCKS[name], tmp_path, monkeypatch))

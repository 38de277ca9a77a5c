"""A learner goes on from a checkpoint as if nothing had happened; a damaged one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from turnwise.config.schema import TinySettings
from turnwise.errors import RunError
from turnwise.learn.checkpoint import load_checkpoint, save_checkpoint
from turnwise.learn.models import load_model
from turnwise.learn.tiny_model import tiny_model_folder
from turnwise.learn.trainer import Trainer

from .parts import copy_of, is_equal, make_batch, make_trainer

PROGRESS = {"step": 2, "next_seed": 17}
FULL: dict[str, Any] = {
    "critic": {"type": "model", "lr": 1e-3},
    "kl": {"type": "loss"},
    "minibatches": 3,
    "optim": {"schedule": "linear"},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    settings = TinySettings(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8)
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny"), settings=settings, seed=0, sample_texts=["a"])
    return AutoTokenizer.from_pretrained(folder)


def trained(steps: int, **learn: Any) -> Trainer:
    trainer = make_trainer(**learn)
    for step in range(steps):
        trainer.step(make_batch(step))
    return trainer


def reloaded(folder: Path, **learn: Any) -> Trainer:
    """As `resume` does it: the policy comes with the model, the rest from the checkpoint; the seed is another."""
    trainer = make_trainer(load_model(folder / "policy"), seed=99, **learn)
    assert load_checkpoint(folder, trainer) == PROGRESS
    return trainer


@pytest.mark.parametrize("learn", [{}, {"critic": {"type": "value_head"}}, FULL], ids=["plain", "value_head", "full"])
def test_a_learner_goes_on_exactly(tmp_path: Path, tokenizer: Any, learn: dict[str, Any]) -> None:
    straight = trained(2, **learn)
    save_checkpoint(tmp_path / "step-000002", straight, tokenizer, PROGRESS)
    resumed = reloaded(tmp_path / "step-000002", **learn)
    assert resumed.policy_version == 2
    for step in (2, 3):
        assert straight.step(make_batch(step)).metrics == resumed.step(make_batch(step)).metrics
    assert is_equal(copy_of(straight.actor.model), resumed.actor.model)
    if straight.critic is not None and resumed.critic is not None:
        assert is_equal(copy_of(straight.critic), resumed.critic)
    if straight.reference is not None and resumed.reference is not None:
        assert is_equal(copy_of(straight.reference.model), resumed.reference.model)
        assert not is_equal(copy_of(straight.actor.model), resumed.reference.model)


def test_a_checkpoint_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "step-000002"
    save_checkpoint(folder, trained(1), tokenizer, {"step": 1})
    (folder / "left_over").write_text("")
    save_checkpoint(folder, trained(2), tokenizer, PROGRESS)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000002"]
    assert not (folder / "left_over").exists()
    assert json.loads((folder / "state.json").read_text())["progress"] == PROGRESS


def test_an_interrupted_save_leaves_no_checkpoint(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path / "step-000002", trained(1), tokenizer, PROGRESS)
    assert not (tmp_path / "step-000002").exists()


@pytest.mark.parametrize("file", ["state.json", "optimizer.pt", "critic.safetensors", "reference/model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"{}"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, tokenizer: Any, file: str, content: bytes | None) -> None:
    folder = tmp_path / "step-000002"
    save_checkpoint(folder, trained(1, **FULL), tokenizer, PROGRESS)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(RunError, match=r"checkpoint .*step-000002 cannot be resumed"):
        load_checkpoint(folder, make_trainer(**FULL))


def test_a_cut_off_optimizer_state_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "step-000002"
    save_checkpoint(folder, trained(1), tokenizer, PROGRESS)
    content = (folder / "optimizer.pt").read_bytes()
    (folder / "optimizer.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="cannot be resumed"):
        load_checkpoint(folder, make_trainer())


def test_the_state_of_another_kind_of_learner_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "step-000002"
    save_checkpoint(folder, trained(1, critic={"type": "value_head"}), tokenizer, PROGRESS)
    with pytest.raises(RunError, match="cannot be resumed"):
        load_checkpoint(folder, make_trainer(critic={"type": "model"}))

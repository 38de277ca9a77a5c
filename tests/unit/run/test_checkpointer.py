"""A learner goes on from a checkpoint as if nothing had happened; a damaged one is refused."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from tests.unit.learn.parts import copy_of, is_equal, make_batch, make_model, make_trainer
from turnwise.config.schema import TinySettings
from turnwise.errors import RunError
from turnwise.infra.atomic_files import describe_os_error
from turnwise.learn.checkpoint import resumed_model
from turnwise.learn.policy import PolicyModel
from turnwise.learn.trainer import Trainer
from turnwise.models.load import load_model
from turnwise.models.tiny import tiny_model_folder
from turnwise.run.checkpoints import Progress, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow

PROGRESS = Progress(step=2, tokens_sampled=7, tasks={"next": 3})
FULL: dict[str, Any] = {
    "critic": {"type": "model", "lr": 1e-3},
    "kl": {"type": "loss"},
    "minibatches": 3,
    "optim": {"schedule": "linear"},
}
LORA: dict[str, Any] = {"model_settings": {"lora": {"type": "lora", "rank": 2}}}


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
    path = resumed_model(folder)
    trainer = make_trainer(load_model(path) if path is not None else None, seed=99, **learn)
    assert load_checkpoint(folder, trainer) == PROGRESS
    return trainer


@pytest.mark.parametrize(
    ("learn", "is_refreshed"),
    [
        ({}, False),
        ({"critic": {"type": "value_head"}}, False),
        (FULL, False),
        ({**FULL, "model_settings": {"dtype": "bfloat16"}}, False),
        (LORA, False),
        ({"critic": {"type": "value_head"}, **LORA}, False),
        ({**FULL, **LORA}, False),
        ({**FULL, **LORA}, True),
    ],
    ids=["plain", "value_head", "full", "bfloat16", "lora", "lora_value_head", "lora_full", "lora_folded"],
)
def test_a_learner_goes_on_exactly(tmp_path: Path, tokenizer: Any, learn: dict[str, Any], is_refreshed: bool) -> None:
    straight = trained(2, **learn)
    if is_refreshed:
        straight.refresh_reference()
        straight.step(make_batch(9))
        straight.policy_version = 2
    save_checkpoint(tmp_path / "step-000002", straight, tokenizer, PROGRESS)
    resumed = reloaded(tmp_path / "step-000002", **learn)
    assert resumed.policy_version == 2
    for step in (2, 3):
        assert straight.step(make_batch(step)).metrics == resumed.step(make_batch(step)).metrics
    assert is_equal(copy_of(straight.actor.model), resumed.actor.model)
    if straight.critic is not None and resumed.critic is not None:
        assert is_equal(copy_of(straight.critic), resumed.critic)
    if isinstance(straight.reference, PolicyModel) and isinstance(resumed.reference, PolicyModel):
        assert is_equal(copy_of(straight.reference.model), resumed.reference.model)
        assert not is_equal(copy_of(straight.actor.model), resumed.reference.model)


@pytest.mark.parametrize("is_refreshed", [False, True])
def test_the_policy_of_a_checkpoint_is_a_plain_model_whatever_was_trained(
    tmp_path: Path, tokenizer: Any, is_refreshed: bool
) -> None:
    trainer = trained(2, kl={"type": "loss"}, **LORA)
    if is_refreshed:
        trainer.refresh_reference()
        trainer.step(make_batch(2))
    save_checkpoint(tmp_path / "step-000002", trainer, tokenizer, PROGRESS)
    assert (tmp_path / "step-000002" / "base.safetensors").is_file() == is_refreshed
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "step-000002" / "policy")
    plain = make_model().state_dict()
    assert policy.state_dict().keys() == plain.keys()
    assert is_equal(dict(trainer.weights()), policy)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(policy.state_dict()[name], plain[name])
    assert len(AutoTokenizer.from_pretrained(tmp_path / "step-000002" / "policy")) == len(tokenizer)


@pytest.mark.parametrize("file", ["adapter.safetensors", "base.safetensors", "critic.safetensors"])
def test_a_damaged_adapter_is_refused(tmp_path: Path, tokenizer: Any, file: str) -> None:
    trainer = trained(1, **FULL, **LORA)
    trainer.refresh_reference()
    save_checkpoint(tmp_path / "step-000002", trainer, tokenizer, PROGRESS)
    (tmp_path / "step-000002" / file).write_bytes(b"garbage")
    with pytest.raises(RunError, match="cannot be resumed"):
        load_checkpoint(tmp_path / "step-000002", make_trainer(**FULL, **LORA))


def test_an_adapter_of_another_rank_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    save_checkpoint(
        tmp_path / "step-000002",
        trained(0, model_settings={"lora": {"type": "lora", "rank": 1}}),
        tokenizer,
        PROGRESS,
    )
    with pytest.raises(RunError, match=r"adapter\.safetensors holds other parameters"):
        load_checkpoint(tmp_path / "step-000002", make_trainer(**LORA))


def test_a_checkpoint_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "step-000002"
    save_checkpoint(folder, trained(1), tokenizer, Progress(step=1))
    (folder / "left_over").write_text("")
    save_checkpoint(folder, trained(2), tokenizer, PROGRESS)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000002"]
    assert not (folder / "left_over").exists()
    assert load_checkpoint(folder, trained(0)) == PROGRESS


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), RuntimeError("No space left on device")])
def test_a_save_that_fails_names_the_checkpoint_and_leaves_the_old_one(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(*_: object) -> None:
        raise failure

    save_checkpoint(tmp_path / "step-000002", trained(1), tokenizer, PROGRESS)
    monkeypatch.setattr(torch, "save", fail)
    for name in ("step-000002", "step-000003"):
        with pytest.raises(RunError, match=f"Cannot write .*{name}: no space left on device"):
            save_checkpoint(tmp_path / name, trained(1), tokenizer, PROGRESS)
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-000002"]
    assert load_checkpoint(tmp_path / "step-000002", trained(0)) == PROGRESS


def test_a_disk_that_gets_full_under_torch_is_told_as_such(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch says how far it came, and not why."""
    plain = torch.save

    class AlmostFull(io.BytesIO):
        def write(self, data: Any) -> int:
            if len(data) > 256:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    def save(state: object, _: object) -> None:
        plain(state, AlmostFull())

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(RunError, match=r"Cannot write .*step-000002: no space left on device\."):
        save_checkpoint(tmp_path / "step-000002", trained(1), tokenizer, PROGRESS)
    with pytest.raises(RuntimeError, match="unexpected pos") as raised:
        torch.save({"a": torch.zeros(999)}, "")
    assert "no space left on device" in (describe_os_error(raised.value) or "")


@pytest.mark.parametrize(
    "file", ["learner.json", "progress.json", "optimizer.pt", "critic.safetensors", "reference/model.safetensors"]
)
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

"""Files written tensor by tensor, against what safetensors and transformers read."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.unit.learn.parts import make_batch, make_model, make_trainer
from turnwise.models.adapters import MergedWeights
from turnwise.models.load import write_weights


def test_a_written_file_is_what_was_given_with_tied_weights_once(tmp_path: Path) -> None:
    weights = make_model().state_dict()
    write_weights(tmp_path / "a.safetensors", weights)
    found = load_file(tmp_path / "a.safetensors")
    assert weights.keys() - found.keys() == {"lm_head.weight"}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in found.items())


def test_merged_weights_are_made_one_at_a_time_and_are_all_in_a_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(model_settings={"lora": {"type": "lora"}})
    trainer.step(make_batch())
    weights = trainer.weights()
    assert isinstance(weights, MergedWeights)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert weights[name] is not weights[name]
    trainer.save_state(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").state_dict()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in weights.items())


def test_half_precision_and_an_empty_tensor_are_kept(tmp_path: Path) -> None:
    weights = {"half": torch.arange(6).reshape(2, 3).to(torch.bfloat16), "none": torch.zeros(0, 3)}
    write_weights(tmp_path / "a.safetensors", weights)
    found = load_file(tmp_path / "a.safetensors")
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in weights.items()
    )

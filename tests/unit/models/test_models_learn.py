"""Model folders that cannot be used are explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.learn.parts import make_model
from turnwise.errors import ModelError
from turnwise.models.load import load_model


def test_a_folder_loads_in_float32(tmp_path: Path) -> None:
    make_model(4).half().save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    expected = make_model(4).half().float().state_dict()["model.norm.weight"]
    assert torch.equal(model.state_dict()["model.norm.weight"], expected)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing" / "here" / "at_all"):
        with pytest.raises(ModelError, match=r"model\.path '.*' cannot be loaded.*Give a Hugging Face model folder"):
            load_model(path)


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{broken json...}"])
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    make_model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.path '.*' cannot be loaded"):
        load_model(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model_type": "no_such_type"}', "{}"])
def test_a_damaged_config_is_refused(tmp_path: Path, content: str) -> None:
    make_model().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"model\.path '.*' cannot be loaded"):
        load_model(tmp_path)

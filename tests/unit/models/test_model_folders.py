"""Weights of a model folder that must not be read: pickles, and files outside the folder."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from tests.unit.learn.parts import make_model
from turnwise.errors import ModelError
from turnwise.models.load import load_causal_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that transformers loads, without its weights."""
    make_model().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    return tmp_path / "model"


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_of_weights_is_refused_in_words_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ModelError):
        load_causal_model(folder, dtype=torch.float32)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b"])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_of_weights_names_no_file_outside_its_folder(folder: Path, index: str, name: str) -> None:
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": name}}))
    with pytest.raises(ModelError, match="names a file outside the folder"):
        load_causal_model(folder, dtype=torch.float32)

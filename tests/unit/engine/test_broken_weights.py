"""A model whose weights are no numbers is named before it plays, and an engine never samples from one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.engine.tiny_models import make_model
from turnwise.engine.local import LocalEngine
from turnwise.errors import EngineError, ModelError
from turnwise.models.load import load_model
from turnwise.types import GenerateRequest, Sampling


def test_a_model_with_nan_weights_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    """`eval` used to end with success 0 and no word, `train` blamed the learning rate."""
    model = make_model("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"not finite, in 1 of \d+ tensors: model.layers.0.mlp.up_proj.weight"):
        load_model(tmp_path)


def test_probabilities_that_are_not_finite_fail_the_request() -> None:
    model = make_model("llama")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    engine = LocalEngine(model, stop_ids=frozenset({0}))
    request = GenerateRequest(prompt_ids=np.array([1, 2], dtype=np.int32), sampling=Sampling(max_new_tokens=2), seed=0)
    with pytest.raises(EngineError, match="probabilities are not finite"):
        asyncio.run(engine.generate(request))

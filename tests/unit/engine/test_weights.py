"""How weights come into the local engine: one by one, or because they are the learner's own memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnwise.config.load import load_settings
from turnwise.deps import EngineSite
from turnwise.engine.local import LocalEngine
from turnwise.errors import ConfigError, SyncError
from turnwise.learn.trainer import Trainer
from turnwise.models.adapters import add_adapter
from turnwise.models.load import load_model

from ..learn import parts
from .test_local import ask_all, assert_exact, bounded, own_logprobs, random_prompt, request
from .tiny_models import make_model


def open_engine(model: PreTrainedModel | None, *, path: str = "nowhere", device: str = "auto") -> LocalEngine:
    template: Any = SimpleNamespace(stop_ids=frozenset({0}))
    site = EngineSite(model_path=path, dtype="float32", template=template, policy_version=3, model=model)
    return LocalEngine.open(SimpleNamespace(max_rows=8, device=device), site)


class OneAtATime(Mapping[str, Tensor]):
    """Weights that are made when they are asked for; counts how many are alive."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self.num_made = 0

    def __getitem__(self, name: str) -> Tensor:
        self.num_made += 1
        return self._weights[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@pytest.mark.parametrize("kind", ["pairs", "lazy mapping"])
def test_weights_are_taken_one_after_the_other_and_each_once(kind: str) -> None:
    engine, new = LocalEngine(make_model("llama"), stop_ids=frozenset({0})), make_model("llama", seed=1)
    lazy = OneAtATime(new.state_dict())
    bounded(engine.update_weights(iter(lazy.items()) if kind == "pairs" else lazy, 1))
    assert lazy.num_made == len(lazy)
    prompt = random_prompt(1, 9)
    assert_exact(new, prompt, ask_all(engine, [request(prompt)])[0])


def test_a_stream_that_lacks_a_weight_or_has_one_too_many_is_refused() -> None:
    engine, weights = (
        LocalEngine(make_model("llama"), stop_ids=frozenset({0})),
        make_model("llama", seed=1).state_dict(),
    )
    with pytest.raises(SyncError, match=r"unknown \['more'\]"):
        engine.load_weights([("more", torch.zeros(1))], 1)
    with pytest.raises(SyncError, match=r"missing \['lm_head.weight'\]"):
        engine.load_weights([(name, tensor) for name, tensor in weights.items() if name != "lm_head.weight"], 1)
    assert engine.policy_version == 0


def test_an_engine_on_the_learners_model_samples_from_what_was_learnt(tmp_path: Path) -> None:
    model = parts.make_model()
    trainer = parts.make_trainer(model)
    engine = open_engine(model)
    assert engine._runner._short_pass is not None
    twin = parts.make_trainer()
    prompt = random_prompt(1, 9)
    prompt = [token % parts.VOCAB for token in prompt]
    for version in range(1, 4):
        batch = parts.make_batch(seed=version)
        trainer.step(batch)
        twin.step(batch)
        bounded(engine.update_weights(trainer.weights(), version))
        (completion,) = ask_all(engine, [request(prompt, seed=version, cache_key="a")])
        assert completion.policy_version == version
        ids = completion.token_ids.tolist()
        np.testing.assert_allclose(completion.behavior_logprobs, own_logprobs(model, prompt, ids), atol=1e-5)
    # Learning went on as without an engine beside it, and so do checkpoints.
    assert parts.is_equal(parts.copy_of(twin.actor.model), model)
    assert not any(tensor.is_inference() for tensor in model.state_dict().values())
    trainer.save_state(tmp_path)
    resumed = parts.make_trainer(parts.make_model(seed=5))
    shared = open_engine(resumed.actor.model)
    resumed.load_state(tmp_path)
    bounded(shared.update_weights(resumed.weights(), 3))
    assert parts.is_equal(parts.copy_of(model), load_model(tmp_path / "policy"))
    (again,) = ask_all(shared, [request(prompt, seed=3, cache_key="a")])
    assert again.token_ids.tolist() == ids
    assert _steps_alike(trainer, resumed)


def _steps_alike(a: Trainer, b: Trainer) -> bool:
    batch = parts.make_batch(seed=9)
    a.step(batch)
    b.step(batch)
    return parts.is_equal(parts.copy_of(a.actor.model), b.actor.model)


def test_weights_that_are_the_engines_own_memory_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parts.make_model()
    engine = open_engine(model)
    copied: list[Tensor] = []
    monkeypatch.setattr(Tensor, "copy_", lambda self, other, *_: copied.append(other))
    engine.load_weights(model.state_dict(), 4)
    assert (engine.policy_version, copied) == (4, [])


def test_a_model_with_adapters_is_not_run_without_them() -> None:
    """Fresh adapters change nothing, so the comparison at the start cannot show it."""
    model = parts.make_model()
    settings = load_settings({"env": {"type": "frozen_lake"}}, ["model.lora={type: lora}"]).model.lora
    add_adapter(model, settings, seed=0)  # type: ignore[arg-type]
    engine = open_engine(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    prompt = [1, 2, 3, 4, 5]
    (completion,) = ask_all(engine, [request(prompt)])
    assert_exact(model, prompt, completion)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:", "cpu0", ""])
def test_a_device_that_is_none_is_refused_with_the_settings(device: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.device: .* given; expected auto, or a device as torch names it"):
        load_settings({"env": {"type": "frozen_lake"}, "engine": {"device": device}})


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_devices_that_torch_knows_are_settings(device: str) -> None:
    settings = load_settings({"env": {"type": "frozen_lake"}, "engine": {"device": device}})
    assert settings.engine.device == device  # type: ignore[attr-defined]


def test_the_model_is_loaded_to_the_device_of_the_settings(tmp_path: Path) -> None:
    parts.make_model().save_pretrained(tmp_path)
    assert open_engine(None, path=str(tmp_path), device="cpu")._model.device == torch.device("cpu")
    assert load_model(tmp_path, torch.float32, torch.device("meta")).device.type == "meta"
    # No machine has so many.
    with pytest.raises(ConfigError, match=r"engine\.device = 'cuda:99' given; this machine has no such device"):
        open_engine(None, path=str(tmp_path), device="cuda:99")

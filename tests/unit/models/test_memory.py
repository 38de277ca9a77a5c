"""The report against what a learner really holds, and the setting behind every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from tests.unit.learn.parts import make_batch, make_model, make_trainer
from turnwise.config.schema import ModelSettings, TinySettings
from turnwise.config.schema_learn import LearnSettings
from turnwise.learn.policy import PolicyModel
from turnwise.models.memory import MemoryReport, describe_in_one_line, format_bytes, read_config, report_memory
from turnwise.models.tiny import tiny_config

KL = {"type": "loss"}
LORA = {"lora": {"type": "lora", "rank": 2}}
HALF = {"dtype": "bfloat16"}


def report(config: Any = None, *, model_settings: Any = None, judge_path: str | None = None, **learn: Any) -> Any:
    config = make_model().config if config is None else config
    settings = LearnSettings.model_validate(learn)
    return report_memory(config, ModelSettings.model_validate(model_settings or {}), settings, judge_path=judge_path)


def row(found: MemoryReport, name: str) -> Any:
    return next(model for model in found.models if model.name == name)


def num_bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def optimizer_bytes(trainer: Any, parameters: list[Any]) -> int:
    states = [trainer.optimizer.state[p] for p in parameters if p in trainer.optimizer.state]
    return num_bytes(tensor for state in states for name, tensor in state.items() if name != "step")


@pytest.mark.parametrize("model_settings", [{}, LORA, HALF, LORA | HALF], ids=["plain", "lora", "half", "lora_half"])
@pytest.mark.parametrize("critic", ["none", "value_head", "model"])
def test_rows_are_what_a_learner_holds_after_a_step(critic: str, model_settings: Any) -> None:
    learn: dict[str, Any] = {"critic": {"type": critic}, "kl": KL}
    trainer = make_trainer(model_settings=model_settings, **learn)
    trainer.optimizer.zero_grad = lambda **_: None  # type: ignore[method-assign]
    trainer.step(make_batch())
    found = report(model_settings=model_settings, **learn)
    held = {"actor": list(trainer.actor.model.parameters())}
    if critic == "model":
        held["critic"] = list(trainer.critic.parameters())  # type: ignore[union-attr]
    if critic == "value_head":
        held["actor"] += list(trainer.critic.parameters())  # type: ignore[union-attr]
    for name, parameters in held.items():
        expected = row(found, name)
        assert expected.is_loaded
        assert expected.parameters == sum(p.numel() for p in parameters)
        assert expected.weight_bytes == num_bytes(parameters)
        assert expected.gradient_bytes == num_bytes(p.grad for p in parameters if p.grad is not None)
        assert expected.optimizer_bytes == optimizer_bytes(trainer, parameters)
    assert row(found, "critic").is_loaded == (critic == "model")
    reference = row(found, "reference")
    assert reference.is_loaded == isinstance(trainer.reference, PolicyModel)
    if isinstance(trainer.reference, PolicyModel):
        assert reference.total_bytes == num_bytes(trainer.reference.model.parameters())


def test_an_output_layer_of_its_own_is_counted_and_costs_a_critic_no_gradient() -> None:
    config = make_model().config
    config.tie_word_embeddings = False
    found = report(config, critic={"type": "model"})
    head = 23 * 16
    assert row(found, "actor").parameters == sum(p.numel() for p in make_model().parameters()) + head
    assert row(found, "actor").gradient_bytes - row(found, "critic").gradient_bytes == 4 * (head - 17)


def test_sums_are_over_what_is_loaded_and_what_is_not() -> None:
    found = report()
    size = sum(p.numel() for p in make_model().parameters())
    assert [model.name for model in found.models if model.is_loaded] == ["actor", "engine"]
    assert found.loaded_bytes == 4 * size * 4 + 4 * size
    assert found.saved_bytes == 4 * size + 4 * (size + 17) * 4 + 4 * size
    half = report(model_settings=HALF)
    assert found.loaded_bytes - half.loaded_bytes == 2 * size


@pytest.mark.parametrize(
    ("name", "settings", "is_loaded", "reason"),
    [
        ("actor", {}, True, "trained in full"),
        ("actor", {"model_settings": LORA}, True, "model.lora: its adapters are trained"),
        ("reference", {}, False, "learn.kl is none"),
        ("reference", {"kl": KL}, True, "learn.kl is loss"),
        ("reference", {"kl": KL, "model_settings": LORA}, False, "model.lora: it is the actor with its adapters off"),
        ("reference", {"kl": KL | {"offload": True}}, False, "learn.kl.offload: it lies in a file"),
        ("critic", {}, False, "learn.critic is none"),
        ("critic", {"critic": {"type": "value_head"}}, False, "learn.critic is value_head, on the actor's trunk"),
        ("critic", {"critic": {"type": "model"}}, True, "learn.critic is model"),
        ("reward model", {}, False, "reward.judge is no model"),
        ("reward model", {"judge_path": "no/where"}, True, "reward.judge is a model"),
    ],
)
def test_every_row_names_the_setting_behind_it(name: str, settings: Any, is_loaded: bool, reason: str) -> None:
    found = row(report(**settings), name)
    assert (found.is_loaded, found.reason) == (is_loaded, reason)


def test_the_reward_model_has_the_size_of_its_own_folder(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=8, n_layer=1, n_head=2, architectures=["GPT2LMHeadModel"])
    config.save_pretrained(tmp_path)
    found = row(report(judge_path=str(tmp_path)), "reward model")
    assert found.parameters == sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())


def test_shapes_are_read_without_weights_and_the_unknown_is_unknown(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    config = read_config(str(tmp_path))
    assert report(config) == report()
    assert read_config("no/where") is None
    (tmp_path / "config.json").write_text("{")
    assert read_config(str(tmp_path)) is None
    unknown = report_memory(None, ModelSettings(), LearnSettings())
    assert {model.total_bytes for model in unknown.models} == {None}
    assert (unknown.loaded_bytes, unknown.saved_bytes) == (None, None)
    assert "actor unknown size" in describe_in_one_line(unknown)


def test_a_large_model_is_measured_without_being_made() -> None:
    tiny = TinySettings(hidden_size=4096, num_layers=32, num_heads=32, intermediate_size=11008)
    found = report(tiny_config(tiny, vocab_size=32000), model_settings=LORA)
    assert row(found, "engine").parameters == 32000 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096
    assert torch.get_default_device().type == "cpu"


def test_the_line_at_the_start_of_a_run() -> None:
    line = describe_in_one_line(report(critic={"type": "model"}))
    assert line == (
        "models: actor 0.1 MB, engine 0.0 MB, critic 0.1 MB; not loaded: reference (learn.kl is none), "
        "reward model (reward.judge is no model): 0.0 MB saved"
    )
    everything = describe_in_one_line(report(critic={"type": "model"}, kl=KL, judge_path="no/where"))
    assert "not loaded" not in everything


def test_sizes_in_words() -> None:
    assert [format_bytes(n) for n in (None, 0, 1_260_000, 999_940_000, 26_100_000_000)] == [
        "unknown size",
        "0.0 MB",
        "1.3 MB",
        "999.9 MB",
        "26.1 GB",
    ]

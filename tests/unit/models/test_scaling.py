"""Sums for larger models, against their published sizes and against hand-made ones."""

from __future__ import annotations

import pytest

from turnwise.models.gpus import SHAPES, plan_gpus


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("qwen2.5-0.5b", 494_032_768), ("qwen2.5-7b", 7_615_616_512), ("qwen2.5-32b", 32_763_876_352)],
)
def test_a_shape_has_as_many_parameters_as_the_published_model(name: str, parameters: int) -> None:
    assert SHAPES[name].parameters == parameters


def test_full_fine_tuning_takes_sixteen_bytes_per_parameter_sharded_and_a_copy_to_sample_from() -> None:
    shape = SHAPES["qwen2.5-7b"]
    plan = plan_gpus(shape, 8, is_lora=False, episodes=256, row_tokens=4096)
    parts = {part.name: part.num_bytes for part in plan.parts}
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == shape.parameters * 16 // 8
    assert parts["engine"] == shape.parameters * 2
    assert parts["keys and values"] == 32 * 4096 * 28 * 2 * 512 * 2
    assert plan.bytes_per_gpu == sum(parts.values())
    assert plan.sync_bytes == shape.parameters * 2
    assert plan.tokens_per_step == 256 * 4096
    assert plan.fits


def test_more_gpus_take_less_each_and_adapters_less_than_all_weights() -> None:
    def per_gpu(gpus: int, *, is_lora: bool) -> int:
        return plan_gpus(SHAPES["qwen2.5-32b"], gpus, is_lora=is_lora, episodes=256, row_tokens=4096).bytes_per_gpu

    assert per_gpu(1, is_lora=False) > per_gpu(8, is_lora=False) > per_gpu(64, is_lora=False)
    assert per_gpu(8, is_lora=True) < per_gpu(8, is_lora=False)
    assert not plan_gpus(SHAPES["qwen2.5-32b"], 1, is_lora=True, episodes=256, row_tokens=4096).fits


def test_an_engine_too_large_for_a_gpu_is_split() -> None:
    split = {
        name: plan_gpus(shape, 8, is_lora=True, episodes=8, row_tokens=64).gpus_per_engine
        for name, shape in SHAPES.items()
    }
    assert split == {"qwen2.5-0.5b": 1, "qwen2.5-7b": 1, "qwen2.5-32b": 4}

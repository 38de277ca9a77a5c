"""What a learner saves is a plain model: transformers alone gives the learner's own log-probs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from turnwise.models.load import load_model

from .parts import make_batch, make_model, make_trainer, one_micro_batch
from .test_policy import full_table, in_order

LORA = {"lora": {"type": "lora", "rank": 2}}


@pytest.mark.parametrize(
    ("model_settings", "base_dtype"),
    [({}, torch.float32), (LORA, torch.float32), ({}, torch.bfloat16), (LORA, torch.bfloat16)],
    ids=["full", "lora", "full over a bfloat16 base", "lora over a bfloat16 base"],
)
def test_plain_transformers_gives_the_log_probs_of_the_learner(
    tmp_path: Path, model_settings: dict[str, Any], base_dtype: torch.dtype
) -> None:
    make_model().to(base_dtype).save_pretrained(tmp_path / "base")
    trainer = make_trainer(load_model(tmp_path / "base").eval(), model_settings=model_settings)
    for step in range(2):
        trainer.step(make_batch(step))
    trainer.save_state(tmp_path / "checkpoint")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint" / "policy", dtype=torch.float32).eval()
    batch = make_batch(7)
    micro = one_micro_batch(batch)
    with torch.no_grad():
        own = in_order(micro, trainer.actor.score(micro).logprobs)
        plain, _ = full_table(loaded, batch)
        base, _ = full_table(load_model(tmp_path / "base").eval(), batch)
    torch.testing.assert_close(plain, own, atol=1e-5, rtol=0)
    assert (own - base).abs().max() > 1e-3
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight

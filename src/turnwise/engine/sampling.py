"""Logits in, one token id and its log-probability out, row by row.

The log-probability is that of the distribution the token was really drawn from: after temperature, top-k and top-p.
Random numbers belong to the request, so a row's tokens do not depend on the rows beside it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.types import Sampling


def draw_uniforms(seed: int, num_tokens: int) -> list[float]:
    """One uniform number per token of a request, from its seed alone."""
    dice = random.Random(seed)
    return [dice.random() for _ in range(num_tokens)]


def sample_tokens(logits: Tensor, samplings: Sequence[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row of `logits` [rows, vocabulary]; returns ids and log-probs, both [rows].

    Rows are drawn by inverting the cumulative distribution at `uniforms`, in float64: with a vocabulary of 100,000,
    float32 sums lose the tail.
    """
    temperatures = torch.tensor([s.temperature for s in samplings], dtype=torch.float64)
    is_greedy = temperatures == 0
    scaled = logits.double() / torch.where(is_greedy, torch.ones_like(temperatures), temperatures)[:, None]
    scaled = _keep_top_k(scaled, [s.top_k for s in samplings])
    scaled = _keep_top_p(scaled, [s.top_p for s in samplings])
    logprobs = torch.log_softmax(scaled, dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1)
    # Scaling by the last sum keeps a uniform of almost 1 inside the support when rounding left the total below 1.
    drawn = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True).squeeze(1)
    drawn = drawn.clamp(max=logits.shape[1] - 1)
    ids = torch.where(is_greedy, logits.argmax(dim=-1), drawn)
    chosen = logprobs.gather(1, ids[:, None]).squeeze(1)
    # A greedy choice is drawn from a distribution with all its mass on one token.
    return ids, torch.where(is_greedy, torch.zeros_like(chosen), chosen).float()


def _keep_top_k(scaled: Tensor, top_k: Sequence[int]) -> Tensor:
    if not any(top_k):
        return scaled
    size = scaled.shape[1]
    limits = torch.tensor([min(k, size) if k else size for k in top_k])
    descending = scaled.sort(dim=-1, descending=True).values
    floor = descending.gather(1, (limits - 1)[:, None])
    return scaled.masked_fill(scaled < floor, -torch.inf)


def _keep_top_p(scaled: Tensor, top_p: Sequence[float]) -> Tensor:
    if all(p >= 1 for p in top_p):
        return scaled
    limits = torch.tensor(top_p, dtype=torch.float64)[:, None]
    descending, order = scaled.sort(dim=-1, descending=True)
    probs = descending.softmax(dim=-1)
    # A token stays while the mass before it is below the limit, so at least the likeliest always stays.
    is_dropped = (probs.cumsum(dim=-1) - probs) >= limits
    is_dropped[limits.squeeze(1) >= 1] = False
    return scaled.masked_fill(is_dropped.gather(1, order.argsort(dim=-1)), -torch.inf)

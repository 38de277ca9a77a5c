"""Logits in, one token id and its log-probability out, row by row, on the device of the logits.

The log-probability is that of the distribution the token was really drawn from: after temperature, top-k and top-p.
Random numbers belong to the request, and every sum over the vocabulary has its own fixed order, so a row's token and
log-probability do not depend on the rows beside it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.types import Sampling

_BLOCK = 1024
"""Probabilities are summed in float32 within blocks of the vocabulary and in float64 across them: no tail is lost."""
_LOT_ENTRIES = 1 << 19
"""A CPU draws rows in lots of about this many entries: what is made for one lot stays in its cache."""
_CANDIDATES = 1024
"""Where top-p looks first; rows whose mass is wider are sorted whole."""


def draw_uniforms(seed: int, num_tokens: int) -> list[float]:
    """One uniform number per token of a request, from its seed alone."""
    dice = random.Random(seed)
    return [dice.random() for _ in range(num_tokens)]


def sample_tokens(logits: Tensor, samplings: Sequence[Sampling], uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row of `logits` [rows, vocabulary]; returns ids and log-probs, both [rows], on the CPU.

    Rows are drawn by inverting the cumulative distribution at `uniforms`.
    """
    num_rows = max(1, _LOT_ENTRIES // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    uniforms = uniforms.to(logits.device)
    lots = [slice(start, start + num_rows) for start in range(0, len(samplings), num_rows)]
    # One piece of memory for all lots: fresh pages cost a CPU more than the arithmetic.
    scratch = torch.empty(min(num_rows, len(logits)), logits.shape[1], device=logits.device)
    drawn = [_sample_lot(logits[lot], samplings[lot], uniforms[lot], scratch) for lot in lots]
    ids, logprobs = drawn[0] if len(drawn) == 1 else (torch.cat(parts) for parts in zip(*drawn, strict=True))
    return ids.cpu(), logprobs.cpu()


def top_logprobs_of(
    logits: Tensor, samplings: Sequence[Sampling], counts: Sequence[int]
) -> dict[int, tuple[list[int], list[float]]]:
    """For each row that asks for a number of them, its likeliest tokens and their log-probs, the likeliest first.

    Of the distribution that `sample_tokens` draws from; for a greedy row, of the model's at temperature 1.
    """
    rows = [row for row, count in enumerate(counts) if count]
    if not rows:
        return {}
    chosen, asked = logits[rows].float(), [samplings[row] for row in rows]
    scaled = _scaled(chosen, [sampling.temperature for sampling in asked], torch.empty_like(chosen))
    scaled = _keep_top_k(scaled, [sampling.top_k if sampling.temperature else 0 for sampling in asked])
    scaled = _keep_top_p(scaled, [sampling.top_p if sampling.temperature else 1.0 for sampling in asked])
    best = scaled.log_softmax(dim=-1).topk(min(max(counts), scaled.shape[1]), dim=-1)
    ids, logprobs = best.indices.tolist(), best.values.tolist()
    return {row: (ids[n][: counts[row]], logprobs[n][: counts[row]]) for n, row in enumerate(rows)}


def _sample_lot(
    logits: Tensor, samplings: Sequence[Sampling], uniforms: Tensor, scratch: Tensor
) -> tuple[Tensor, Tensor]:
    temperatures = [sampling.temperature for sampling in samplings]
    if not any(temperatures):
        ids = logits.argmax(dim=-1)
        return ids, torch.zeros(len(ids), device=ids.device)
    scaled = _scaled(logits, temperatures, scratch[: len(logits)])
    scaled = _keep_top_k(scaled, [sampling.top_k for sampling in samplings])
    scaled = _keep_top_p(scaled, [sampling.top_p for sampling in samplings])
    ids, logprobs = _invert(scaled.softmax(dim=-1), uniforms)
    if not all(temperatures):
        is_greedy = torch.tensor([not temperature for temperature in temperatures], device=ids.device)
        ids = torch.where(is_greedy, logits.argmax(dim=-1), ids)
        # A greedy choice is drawn from a distribution with all its mass on one token.
        logprobs = logprobs.masked_fill(is_greedy, 0.0)
    return ids, logprobs


def _scaled(logits: Tensor, temperatures: Sequence[float], scratch: Tensor) -> Tensor:
    """Logits in float32, over each row's temperature."""
    logits = logits.float()
    if all(temperature in (0, 1) for temperature in temperatures):
        return logits
    # Distances to the likeliest are what float32 holds best where it matters: near the likeliest.
    distances = torch.sub(logits, logits.amax(dim=-1, keepdim=True), out=scratch)
    return distances.div_(
        torch.tensor([temperature or 1.0 for temperature in temperatures], device=logits.device)[:, None]
    )


def _invert(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The entry of `probs` [rows, vocabulary] at each uniform of the cumulative sum, and its log-probability."""
    size = probs.shape[1]
    if size <= _BLOCK:
        probs = probs.double()
        cumulative = probs.cumsum(dim=-1)
        ids, _ = _locate(cumulative, uniforms)
        return ids.squeeze(1), (probs.gather(1, ids) / cumulative[:, -1:]).log_().float().squeeze(1)
    cumulative = _block_sums(probs).cumsum(dim=-1)
    block, target = _locate(cumulative, uniforms)
    places = block * _BLOCK + torch.arange(_BLOCK, device=probs.device)
    inside = probs.gather(1, places.clamp(max=size - 1)).double().masked_fill_(places >= size, 0.0)
    entry, _ = _locate(inside.cumsum(dim=-1), _share(cumulative, block, target))
    # Only where no number comes out of the model at all does the bound change anything.
    ids = (block * _BLOCK + entry).clamp_(max=size - 1)
    return ids.squeeze(1), (inside.gather(1, entry) / cumulative[:, -1:]).log_().float().squeeze(1)


def _block_sums(weights: Tensor) -> Tensor:
    """[rows, blocks] of `weights` [rows, vocabulary], in float64."""
    whole = weights.shape[1] // _BLOCK * _BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, _BLOCK)).sum(dim=-1) if whole else weights[:, :0]
    rest = weights[:, whole:].sum(dim=-1, keepdim=True)
    return torch.cat([sums, rest], dim=1).double()


def _locate(cumulative: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The part of each row [rows, parts] in which its uniform falls, and where on the sum that is; both [rows, 1].

    A uniform of almost 1 is held below the last sum, so that a part without weight is never chosen.
    """
    total = cumulative[:, -1:]
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1), target


def _share(cumulative: Tensor, part: Tensor, target: Tensor) -> Tensor:
    """[rows] how far inside its part a target is, from 0 to 1."""
    end = cumulative.gather(1, part)
    begin = cumulative.gather(1, (part - 1).clamp_(min=0)).masked_fill_(part == 0, 0.0)
    return ((target - begin) / (end - begin)).squeeze(1)


def _keep_top_k(scaled: Tensor, top_k: Sequence[int]) -> Tensor:
    """Without what is less likely than each row's k-th likeliest."""
    if not any(top_k):
        return scaled
    limits = [min(k, scaled.shape[1]) for k in top_k]
    likeliest = scaled.topk(max(limits), dim=-1).values
    places = torch.tensor([max(limit, 1) - 1 for limit in limits], device=scaled.device)
    is_free = torch.tensor([not limit for limit in limits], device=scaled.device)
    floor = likeliest.gather(1, places[:, None]).masked_fill_(is_free[:, None], -torch.inf)
    return scaled.masked_fill(scaled < floor, -torch.inf)


def _keep_top_p(scaled: Tensor, top_p: Sequence[float]) -> Tensor:
    """Without what is less likely than the last of the likeliest whose mass reaches p."""
    rows = [row for row, p in enumerate(top_p) if p < 1]
    if not rows:
        return scaled
    chosen = scaled[rows]
    limits = torch.tensor([top_p[row] for row in rows], dtype=torch.float64, device=scaled.device)
    probs = chosen.softmax(dim=-1)
    targets = limits * _block_sums(probs).cumsum(dim=-1)[:, -1]
    descending = probs.topk(min(_CANDIDATES, probs.shape[1]), dim=-1).values
    floor, is_reached = _floor(descending, targets)
    if not bool(is_reached.all()) and descending.shape[1] < probs.shape[1]:
        wide = (~is_reached).nonzero().squeeze(1)
        floor[wide] = _floor(probs[wide].sort(dim=-1, descending=True).values, targets[wide])[0]
    kept = scaled.clone()
    kept[rows] = chosen.masked_fill_(probs < floor[:, None], -torch.inf)
    return kept


def _floor(descending: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The least likely that stays in each row, and whether the mass of `descending` gets as far as the target.

    An entry stays while the mass before it is below the target, so at least the likeliest always stays.
    """
    probs = descending.double()
    cumulative = probs.cumsum(dim=-1)
    num_kept = ((cumulative - probs) < targets[:, None]).sum(dim=-1).clamp_(min=1)
    return descending.gather(1, num_kept[:, None] - 1).squeeze(1), cumulative[:, -1] >= targets

"""The output layer at sampled tokens: log-probs and entropies, with a few rows of logits in memory at a time.

In: states before the output layer, and the tokens that were sampled. Out: their log-probs and the entropies of their
distributions, in float32. Logits are made for a few tokens, used, and made again in the backward pass; the gradient of
the output layer is summed in one place. It knows nothing of batches, trunks or losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from turnwise.models.memory import MAX_LOGITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """How states become logits."""

    layer: nn.Module
    temperature: float
    dtype: torch.dtype = torch.float32
    """In which the product is computed."""
    cap: float | None = None
    """Where the model squeezes its logits between -cap and cap."""

    def score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[N] log-probs and [N] entropies for `hidden` [N, hidden] and `targets` [N]."""
        layer = self.layer
        num_rows = rows_at_once(getattr(layer, "out_features", None) or self.logits(hidden[:1]).shape[-1])
        if len(hidden) <= num_rows:
            return self._score_kept(hidden, targets)
        if isinstance(layer, nn.Linear) and layer.bias is None and self.cap is None:
            return _Scores.apply(hidden, layer.weight, targets, self, num_rows)  # type: ignore[return-value]
        parts = [
            checkpoint(self._score_kept, h, t, use_reentrant=False)
            for h, t in zip(hidden.split(num_rows), targets.split(num_rows), strict=True)
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def logits(self, hidden: Tensor) -> Tensor:
        with computing_in(self.dtype, hidden.device):
            logits = self.layer(hidden)
        # Half precision loses the tail of a softmax.
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def _score_kept(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        table = torch.log_softmax(self.logits(hidden) / self.temperature, dim=-1)
        logprobs = table.gather(1, targets[:, None]).squeeze(1)
        return logprobs, -(table.exp() * table).sum(dim=-1)


def rows_at_once(vocab_size: int) -> int:
    """How many tokens' logits are in memory at a time."""
    return max(1, MAX_LOGITS // vocab_size)


def computing_in(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """Matrix products in bfloat16 over float32 weights; with float32 everything is as the weights are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _shifted_logits(head: Head, hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits less the largest of their row, which no softmax sees."""
    with computing_in(head.dtype, hidden.device):
        table = F.linear(hidden, weight)
    table = table.float() if table.dtype.itemsize < 4 else table
    table = table.div_(head.temperature)
    return table.sub_(table.amax(dim=-1, keepdim=True))


def _to_logits(
    table: Tensor, targets: Tensor, entropies: Tensor, of_logprob: Tensor | None, of_entropy: Tensor | None
) -> Tensor:
    """The gradient at tempered logits, in the memory of `table`, which holds them shifted.

    With p the distribution and H its entropy: d log p[t] = 1[t] - p, and d H = -p (log p + H).
    """
    logprobs = table.sub_(table.logsumexp(dim=-1, keepdim=True))
    if of_entropy is None:
        table = logprobs.exp_().mul_(0 if of_logprob is None else -of_logprob[:, None])
    else:
        slope = logprobs + entropies[:, None]
        slope.mul_(of_entropy[:, None])
        if of_logprob is not None:
            slope.add_(of_logprob[:, None])
        table = logprobs.exp_().mul_(slope).neg_()
    if of_logprob is not None:
        table[torch.arange(len(table), device=table.device), targets] += of_logprob
    return table


class _Scores(torch.autograd.Function):
    """The same numbers as `Head._score_kept`, of more tokens than their logits could be kept for."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: Head, num_rows: int) -> Any:
        logprobs, entropies = [], []
        for rows in _chunks(len(hidden), num_rows):
            table = _shifted_logits(head, hidden[rows], weight)
            chosen = table.gather(1, targets[rows, None]).squeeze(1)
            powers = table.exp()
            total = powers.sum(dim=-1)
            logprobs.append(chosen - total.log())
            entropies.append(total.log() - powers.mul_(table).sum(dim=-1) / total)
        ctx.save_for_backward(hidden, weight, targets, torch.cat(entropies))
        ctx.head, ctx.num_rows = head, num_rows
        ctx.set_materialize_grads(False)
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        hidden, weight, targets, entropies = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(hidden), ctx.num_rows):
            own = [None if gradient is None else gradient[rows] for gradient in gradients]
            table = _shifted_logits(ctx.head, hidden[rows], weight)
            table = _to_logits(table, targets[rows], entropies[rows], *own).div_(ctx.head.temperature)
            table = table.to(ctx.head.dtype)
            if to_hidden is not None:
                to_hidden[rows] = table @ weight.to(ctx.head.dtype)
            if to_weight is not None and table.dtype == torch.float32:
                to_weight.addmm_(table.t(), hidden[rows])
            elif to_weight is not None:
                to_weight += table.t() @ hidden[rows].to(ctx.head.dtype)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None

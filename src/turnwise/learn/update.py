"""What an update reports in numbers: means over its optimizer steps, and what its batch was like.

In: sums over the tokens of micro-batches, and a Batch. Out: metrics by name. It refuses to know what the numbers mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.config import schema_learn as learning
from turnwise.config.schema_learn import ImportanceCorrection
from turnwise.errors import LearnError
from turnwise.learn.pack import MicroBatch
from turnwise.learn.parallel_context import ParallelContext
from turnwise.learn.policy import TokenScores
from turnwise.protocols import PolicyLoss
from turnwise.types import Batch, FloatArray, UpdateTrace


class MetricAccumulator:
    """Sums over micro-batches, averaged over optimizer steps; notes are summed once per update.

    A number is a rank's share of a sum, or one of all ranks, which each of them knows and one of them counts.
    """

    def __init__(self, team: ParallelContext) -> None:
        self._team = team
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._notes: defaultdict[str, float] = defaultdict(float)
        self._num_steps = 0

    def note(self, name: str, value: float) -> None:
        """Of all ranks."""
        self._notes[name] += value if self._team.is_first else 0.0

    def note_share(self, name: str, value: float) -> None:
        self._notes[name] += value

    def add_share(self, name: str, total: Tensor, count: int) -> None:
        self._sums[name] += float(total) / count

    def count_step(self, grad_norm: Tensor) -> None:
        """An optimizer step was made, by all ranks alike."""
        self._sums["grad_norm"] += float(grad_norm) if self._team.is_first else 0.0
        self._num_steps += 1

    def means(self) -> dict[str, float]:
        """Of all ranks together."""
        steps = max(self._num_steps, 1)
        return self._team.sum_numbers({name: total / steps for name, total in self._sums.items()} | dict(self._notes))


def batch_metrics(batch: Batch) -> dict[str, float]:
    """Counts of a batch, and how much of its returns the critic foresaw.

    `credit_target` is what the critic should say on average; without a critic it is the mean advantage, near 0.
    """
    mask = batch.loss_mask
    returns, values = batch.returns[mask], batch.values[mask]
    spread = float(returns.var())
    explained = 1 - float((returns - values).var()) / spread if spread > 0 else 0.0
    return {
        "tokens": float(len(batch.token_ids)),
        "action_tokens": float(mask.sum()),
        "rows": float(batch.num_rows),
        "credit_target": float(returns.mean()),
        "explained_variance": explained,
    }


class UpdateTracer:
    """Follows one update. What it never meets, rows without a gradient, stays NaN on sampled tokens."""

    def __init__(self, batch: Batch, *, num_epochs: int, proximal_logprobs: FloatArray | None = None) -> None:
        """`proximal_logprobs` where they were scored before the update; else the first epoch's stand for them."""
        self.num_steps = 0
        """Mini-batches begun before the one that runs."""
        self._num_epochs = num_epochs
        self._is_first = self._is_last = False
        self._proximal_logprobs = proximal_logprobs
        self._proximal_steps = np.zeros(batch.num_rows, dtype=np.int32)
        unknown = np.where(batch.loss_mask, np.float32(np.nan), np.float32(0))
        self._first, self._last = np.tile(unknown, (5, 1)), np.tile(unknown, (2, 1))

    def begin_epoch(self, epoch: int) -> None:
        self._is_first, self._is_last = epoch == 0, epoch == self._num_epochs - 1

    def note(self, micro: MicroBatch, scores: TokenScores, details: Mapping[str, Tensor]) -> None:
        """`details` is what the loss reports beside itself, per token; `ratio` and `clip_fraction` are read."""
        if not (self._is_first or self._is_last):
            return
        ratio = _per_token(details.get("ratio"), scores.logprobs)
        if ratio is None:
            ratio = (scores.logprobs.detach() - micro.behavior_logprobs).clamp(-20, 20).exp()
        clipped = _per_token(details.get("clip_fraction"), scores.logprobs)
        clipped = torch.zeros_like(ratio) if clipped is None else clipped
        rows = [t.detach().float() for t in (scores.logprobs, scores.entropies, ratio, clipped)]
        # Stacked, they leave a GPU in one copy.
        seen = torch.stack(rows).cpu().numpy()
        if self._is_first:
            self._first[:3, micro.source] = seen[:3]
        if self._is_last:
            self._last[:, micro.source] = seen[2:]

    def note_losses(self, micro: MicroBatch, losses: Tensor) -> None:
        """What each token adds to the sum that is minimised."""
        if self._is_first:
            self._first[3, micro.source] = losses.detach().float().cpu().numpy()

    def note_distances(self, micro: MicroBatch, distances: Tensor) -> None:
        """How far each token is from the reference, as the loss has it."""
        if self._is_first:
            self._first[4, micro.source] = distances.detach().float().cpu().numpy()

    def end_minibatch(self, rows: NDArray[np.int64]) -> None:
        """An optimizer step was made from these rows."""
        if self._is_first and self._proximal_logprobs is None:
            self._proximal_steps[rows] = self.num_steps
        self.num_steps += 1

    def finish(self, team: ParallelContext) -> UpdateTrace:
        """What all ranks of a team have met together: each token was met by one of them, or by none."""
        first, last = np.split(_merge(np.concatenate([self._first, self._last]), team), [5])
        logprobs, entropies, first_ratios, first_losses, first_distances = first
        return UpdateTrace(
            proximal_logprobs=logprobs if self._proximal_logprobs is None else self._proximal_logprobs,
            proximal_steps=self._proximal_steps,
            first_ratios=first_ratios,
            last_ratios=last[0],
            entropies=entropies,
            is_clipped=last[1] > 0,
            first_losses=first_losses,
            first_distances=first_distances,
        )


def _merge(seen: FloatArray, team: ParallelContext) -> FloatArray:
    """NaN where no rank has seen anything."""
    is_known = ~np.isnan(seen)
    known, count = team.sum_array(np.stack([np.where(is_known, seen, np.float32(0)), is_known.astype(np.float32)]))
    return np.where(count > 0, known, np.float32(np.nan))


def _per_token(reported: Tensor | None, like: Tensor) -> Tensor | None:
    """A loss of the user's may report a single number where others report one per token."""
    return reported if reported is not None and reported.shape == like.shape else None


def has_no_gradient_at_zero_advantage(loss: PolicyLoss, settings: learning.LearnSettings) -> bool:
    """Whether tokens with advantages of zero have no gradient, from the policy loss or from anything beside it."""
    has_more = (
        settings.entropy_coef > 0
        or not isinstance(settings.critic, learning.NoCritic)
        or isinstance(settings.kl, learning.KlLoss)
        or not isinstance(settings.ptx, learning.NoPtx)
    )
    return not has_more and _is_loss_silent(loss)


def _is_loss_silent(loss: PolicyLoss) -> bool:
    """Not so for one that imitates what was sampled, whatever it earned."""
    logprobs = torch.tensor([-0.3, -2.0, -0.9, -1.4], requires_grad=True)
    behavior, turns = torch.tensor([-1.5, -0.2, -0.9, -1.0]), torch.tensor([0, 0, 1, 1])
    try:
        per_token, _ = loss(logprobs, behavior, torch.zeros(4), turns)
        per_token.sum().backward()
    except (RuntimeError, ValueError, TypeError):
        # What it does with a real batch is not for this to find out.
        return False
    return logprobs.grad is not None and not logprobs.grad.any()


def rows_with_gradient(batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the rows in which a sampled token has an advantage, in the same order."""
    has_credit = np.add.reduceat(batch.loss_mask & (batch.advantages != 0), batch.row_starts[:-1], dtype=np.int64) > 0
    return rows[has_credit[rows]]


_CAUSES = {
    "behavior_logprobs": "the engine that sampled them has recorded no probabilities; look at its weights",
    "reference_logprobs": "the reference model gives no probabilities; look at learn.kl and its weights",
    "values": "the critic has diverged; lower the learning rate in learn.critic",
    "returns": "rewards are not finite, or too large for float32; scale them down",
    "advantages": "rewards are not finite, or too large for float32; scale them down",
}
"""In the order of the pipeline: what is broken first breaks all that follows."""


def validate_batch(batch: Batch) -> None:
    """Raise LearnError for a batch that no update can be made from; the weights are as they were."""
    if not batch.loss_mask.any():
        raise LearnError("the batch has no sampled tokens; nothing can be learnt from it.")
    for name, cause in _CAUSES.items():
        is_broken = ~np.isfinite(getattr(batch, name)) & batch.loss_mask
        if is_broken.any():
            token = int(np.argmax(is_broken))
            row = int(np.searchsorted(batch.row_starts, token, side="right")) - 1
            raise LearnError(
                f"{int(is_broken.sum())} of {int(batch.loss_mask.sum())} sampled tokens have {name} that are not "
                f"finite, the first is token {token - int(batch.row_starts[row])} of row {row}, turn "
                f"{int(batch.turn_ids[token])}: {getattr(batch, name)[token]}. No update was made. Probably {cause}."
            )


def importance_weights(
    proximal_logprobs: FloatArray, behavior_logprobs: FloatArray, settings: ImportanceCorrection
) -> FloatArray:
    """The ratio of the two, cut off at `cap` (truncated), or 0 where it leaves 1/cap to cap (masked)."""
    ratio = np.exp(np.clip(proximal_logprobs - behavior_logprobs, -20, 20))
    if settings.type == "truncated":
        return np.minimum(ratio, settings.cap)
    return np.where((ratio >= 1 / settings.cap) & (ratio <= settings.cap), ratio, 0.0).astype(np.float32)

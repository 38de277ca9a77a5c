"""Collects what an update computes about each token anyway, before it is thrown away.

In: the scores and the loss's own report of every micro-batch. Out: one `UpdateTrace` over the Batch. It computes
nothing that a loss has computed, and copies once per micro-batch, in the first and in the last epoch alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.learn.pack import MicroBatch
from turnwise.learn.parallel.team import Team
from turnwise.learn.policy import TokenScores
from turnwise.types import Batch, FloatArray, UpdateTrace


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

    def finish(self, team: Team) -> UpdateTrace:
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


def _merge(seen: FloatArray, team: Team) -> FloatArray:
    """NaN where no rank has seen anything."""
    is_known = ~np.isnan(seen)
    known, count = team.sum_array(np.stack([np.where(is_known, seen, np.float32(0)), is_known.astype(np.float32)]))
    return np.where(count > 0, known, np.float32(np.nan))


def _per_token(reported: Tensor | None, like: Tensor) -> Tensor | None:
    """A loss of the user's may report a single number where others report one per token."""
    return reported if reported is not None and reported.shape == like.shape else None

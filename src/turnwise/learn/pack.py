"""Samples become arrays: rows laid end to end, then micro-batches that fit a token budget.

In: Samples. Out: one `Batch` for an update, and from it padded `MicroBatch`es for forward passes. How rows are put
into micro-batches changes speed and memory only: every sum over tokens is divided by a count over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.config.sections.learn import Aggregation
from turnwise.types import Batch, Experience, FloatArray, Sample, TrajectoryId


def pack(samples: Sequence[Sample]) -> Batch:
    """Lay the rows of all samples end to end."""
    segments = [sample.experience.segment for sample in samples]
    numbers: dict[TrajectoryId, int] = {}
    trajectory_of_row = [numbers.setdefault(s.experience.id.trajectory, len(numbers)) for s in samples]
    return Batch(
        trajectory_of_row=np.array(trajectory_of_row, dtype=np.int64),
        row_starts=np.cumsum([0, *(len(segment) for segment in segments)]),
        token_ids=np.concatenate([segment.token_ids for segment in segments]),
        loss_mask=np.concatenate([segment.loss_mask for segment in segments]),
        turn_ids=np.concatenate([segment.turn_ids for segment in segments]),
        behavior_logprobs=np.concatenate([segment.behavior_logprobs for segment in segments]),
        reference_logprobs=np.concatenate([sample.reference_logprobs for sample in samples]),
        advantages=np.concatenate([sample.advantages for sample in samples]),
        returns=np.concatenate([sample.returns for sample in samples]),
        values=np.concatenate([sample.values for sample in samples]),
    )


def pack_without_credit(experiences: Sequence[Experience]) -> Batch:
    """The same rows before any credit is known: for scoring and for imitation."""

    def blank(experience: Experience) -> FloatArray:
        return np.zeros(len(experience.segment), dtype=np.float32)

    return pack(
        [
            Sample(experience=e, advantages=blank(e), returns=blank(e), values=blank(e), reference_logprobs=blank(e))
            for e in experiences
        ]
    )


def token_weights(batch: Batch, rows: NDArray[np.int64], aggregation: Aggregation) -> FloatArray:
    """[tokens] how much each sampled token of these rows counts in the loss; 0 elsewhere.

    Taken over all rows at once and over trajectories instead of rows, so that neither micro-batches nor cuts matter.
    """
    row_of_token = np.repeat(np.arange(batch.num_rows), batch.row_lengths)
    counts = np.flatnonzero(batch.loss_mask & np.isin(row_of_token, rows))
    weights = np.zeros(len(batch.token_ids), dtype=np.float32)
    if aggregation == "token_mean":
        weights[counts] = 1 / max(len(counts), 1)
        return weights
    trajectory = batch.trajectory_of_row[row_of_token[counts]]
    lengths = np.bincount(trajectory)
    share = 1.0 if aggregation == "seq_mean_token_sum" else 1 / lengths[trajectory]
    weights[counts] = share / max(np.count_nonzero(lengths), 1)
    return weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Rows padded on the right to one width, and their N sampled tokens as flat arrays."""

    input_ids: Tensor
    """[rows, width - 1] all but the last column"""
    row: Tensor
    """[N] the row of each sampled token"""
    position: Tensor
    """[N] its position in the row, at least 1"""
    turn: Tensor
    """[N] the turn of each sampled token, numbered from 0 within this micro-batch"""
    source: NDArray[np.int64]
    """[N] its index in the Batch's flat arrays"""
    targets: Tensor
    behavior_logprobs: Tensor
    reference_logprobs: Tensor
    advantages: Tensor
    returns: Tensor
    values: Tensor

    @property
    def num_action_tokens(self) -> int:
        return len(self.targets)


def micro_batches(batch: Batch, rows: NDArray[np.int64], max_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
    """Rows of similar length together, each micro-batch at most `max_tokens` padded tokens (at least one row)."""
    lengths = batch.row_lengths[rows]
    order = rows[np.argsort(lengths, kind="stable")[::-1]]
    start = 0
    while start < len(order):
        num_rows = max(1, int(max_tokens // batch.row_lengths[order[start]]))
        yield _micro_batch(batch, order[start : start + num_rows], device)
        start += num_rows


def _micro_batch(batch: Batch, rows: NDArray[np.int64], device: torch.device) -> MicroBatch:
    lengths = batch.row_lengths[rows]
    columns = np.arange(int(lengths.max()))
    is_token = columns[None, :] < lengths[:, None]
    index = np.where(is_token, batch.row_starts[rows][:, None] + columns[None, :], 0)
    row, position = np.nonzero(batch.loss_mask[index] & is_token)
    source = index[row, position]

    def flat(array: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(array[source], device=device)

    # The last column is only ever predicted, never read from.
    inputs = np.where(is_token, batch.token_ids[index], 0)[:, : max(len(columns) - 1, 1)]
    return MicroBatch(
        input_ids=torch.as_tensor(inputs, dtype=torch.long, device=device),
        row=torch.as_tensor(row, device=device),
        position=torch.as_tensor(position, device=device),
        turn=torch.as_tensor(_number_turns(row, batch.turn_ids[source]), device=device),
        source=source,
        targets=flat(batch.token_ids).long(),
        behavior_logprobs=flat(batch.behavior_logprobs),
        reference_logprobs=flat(batch.reference_logprobs),
        advantages=flat(batch.advantages),
        returns=flat(batch.returns),
        values=flat(batch.values),
    )


def _number_turns(row: NDArray[np.int64], turn_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Dense numbers of (row, turn) pairs; the tokens of a turn lie side by side."""
    is_new = np.ones(len(row), dtype=np.bool_)
    is_new[1:] = (np.diff(row) != 0) | (np.diff(turn_ids) != 0)
    return np.cumsum(is_new) - 1

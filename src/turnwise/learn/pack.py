"""Samples become arrays: rows laid end to end, then micro-batches that fit a token budget.

In: Samples. Out: one `Batch` for an update, and from it `MicroBatch`es for forward passes: rows padded on the right, or
families of rows in which a prompt stands once. How rows are put into micro-batches changes speed and memory only:
every sum over tokens is divided by a count over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.config.schema_learn import Aggregation
from turnwise.learn.prefix_sharing import SharedPrefixBatch, group_by_prefix
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


def split_rows(flat: FloatArray | None, batch: Batch) -> tuple[FloatArray, ...] | None:
    """An array over the tokens of a batch, row by row."""
    return None if flat is None else tuple(np.split(flat, batch.row_starts[1:-1]))


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
    """What one forward pass reads, and the N sampled tokens that are predicted in it as flat arrays."""

    input_ids: Tensor
    """[rows, width] padded on the right; one long row where there are families"""
    positions: Tensor | None
    """[1, width] of the long row"""
    families: tuple[SharedPrefixBatch, ...] | None
    """How the long row is to be read"""
    state: Tensor
    """[N] from which place of the flattened inputs each sampled token is predicted"""
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


def micro_batches(
    batch: Batch, rows: NDArray[np.int64], max_tokens: int, device: torch.device, *, enable_prefix_sharing: bool = False
) -> Iterator[MicroBatch]:
    """Rows of similar length together, each micro-batch at most `max_tokens` inputs (at least one row).

    `enable_prefix_sharing` where the model can read families; they are made where that saves enough.
    """
    families = group_by_prefix(batch, rows, max_tokens) if enable_prefix_sharing else None
    if families is not None:
        yield from (_family_batch(batch, part, device) for part in families)
        return
    lengths = batch.row_lengths[rows]
    order = rows[np.argsort(lengths, kind="stable")[::-1]]
    start = 0
    while start < len(order):
        num_rows = max(1, int(max_tokens // batch.row_lengths[order[start]]))
        yield _padded_batch(batch, order[start : start + num_rows], device)
        start += num_rows


def blank_micro_batch(device: torch.device) -> MicroBatch:
    """One token to read and none that was sampled: a pass that changes nothing, for a rank that waits for others."""
    none = torch.empty(0, device=device)
    return MicroBatch(
        input_ids=torch.zeros((1, 1), dtype=torch.long, device=device),
        positions=None,
        families=None,
        state=none.long(),
        turn=none.long(),
        source=np.empty(0, dtype=np.int64),
        targets=none.long(),
        behavior_logprobs=none,
        reference_logprobs=none,
        advantages=none,
        returns=none,
        values=none,
    )


def count_sampled(batch: Batch, rows: NDArray[np.int64]) -> int:
    """The sampled tokens of these rows."""
    return sum(int(np.count_nonzero(batch.loss_mask[slice(*batch.row_starts[row : row + 2])])) for row in rows)


def _padded_batch(batch: Batch, rows: NDArray[np.int64], device: torch.device) -> MicroBatch:
    index, is_token = _index(batch, rows, 0, int(batch.row_lengths[rows].max()))
    row, position = np.nonzero(batch.loss_mask[index] & is_token)
    # The last column is only ever predicted, never read from.
    inputs = np.where(is_token, batch.token_ids[index], 0)[:, : max(index.shape[1] - 1, 1)]
    return MicroBatch(
        input_ids=torch.as_tensor(inputs, dtype=torch.long, device=device),
        positions=None,
        families=None,
        state=torch.as_tensor(row * inputs.shape[1] + position - 1, device=device),
        **_sampled(batch, row, index[row, position], device),
    )


def _family_batch(batch: Batch, families: Sequence[SharedPrefixBatch], device: torch.device) -> MicroBatch:
    inputs: list[NDArray[np.int64]] = []
    positions: list[NDArray[np.int64]] = []
    rows, states, sources = [], [], []
    for family in families:
        members = family.rows.flatten()
        for part, start, width in ((family.rows[:, 0], 0, family.prompt), (members, family.prompt, family.tail)):
            index, is_token = _index(batch, part, start, width)
            inputs.append(np.where(is_token, batch.token_ids[index], 0).flatten())
            positions.append(np.tile(start + np.arange(width), len(part)))
        index, is_token = _index(batch, members, 0, family.prompt + family.tail + 1)
        row, position = np.nonzero(batch.loss_mask[index] & is_token)
        in_prompt = family.first + row // family.rows.shape[1] * family.prompt + position - 1
        in_tail = family.first_tail + row * family.tail + position - 1 - family.prompt
        states.append(np.where(position <= family.prompt, in_prompt, in_tail))
        sources.append(index[row, position])
        rows.append(members[row])
    source = np.concatenate(sources)
    return MicroBatch(
        input_ids=torch.as_tensor(np.concatenate(inputs)[None], dtype=torch.long, device=device),
        positions=torch.as_tensor(np.concatenate(positions)[None], device=device),
        families=tuple(families),
        state=torch.as_tensor(np.concatenate(states), device=device),
        **_sampled(batch, np.concatenate(rows), source, device),
    )


def _index(
    batch: Batch, rows: NDArray[np.int64], start: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[rows, width] where each token from `start` on lies in the batch, and whether there is one."""
    columns = start + np.arange(width)
    is_token = columns[None, :] < batch.row_lengths[rows][:, None]
    return np.where(is_token, batch.row_starts[rows][:, None] + columns[None, :], 0), is_token


def _sampled(batch: Batch, row: NDArray[np.int64], source: NDArray[np.int64], device: torch.device) -> dict[str, Any]:
    """What is known about the sampled tokens at `source`."""

    def flat(array: NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(array[source], device=device)

    return {
        "turn": torch.as_tensor(_number_turns(row, batch.turn_ids[source]), device=device),
        "source": source,
        "targets": flat(batch.token_ids).long(),
        "behavior_logprobs": flat(batch.behavior_logprobs),
        "reference_logprobs": flat(batch.reference_logprobs),
        "advantages": flat(batch.advantages),
        "returns": flat(batch.returns),
        "values": flat(batch.values),
    }


def _number_turns(row: NDArray[np.int64], turn_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Dense numbers of (row, turn) pairs; the tokens of a turn lie side by side."""
    is_new = np.ones(len(row), dtype=np.bool_)
    is_new[1:] = (np.diff(row) != 0) | (np.diff(turn_ids) != 0)
    return np.cumsum(is_new) - 1

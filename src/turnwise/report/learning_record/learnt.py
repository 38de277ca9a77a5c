"""A batch with where it came from and what became of it: what is written down of one update.

Which part of it is written is decided here as well, by ids alone, so that the same episodes are chosen in whatever
order they were played. It refuses to know files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnwise.infra.seeds import fingerprint
from turnwise.types import Annotations, Batch, Experience, FloatArray, Sample, StepReport, UpdateTrace

Share: TypeAlias = Literal["all", "none"] | int
"""`report.tokens`: everything, nothing, or at most so many tokens of an update."""
_PER_ROW = frozenset({"row_starts", "trajectory_of_row"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearntBatch:
    """One update: the rows of its Batch, in the same order, with all that credit and the learner said about them."""

    policy_version: int
    """The version that the update made."""
    experiences: Sequence[Experience]
    """As credit saw them: merged, with shaped rewards."""
    batch: Batch
    has_values: bool
    """Whether a critic said something; without one, values are 0."""
    has_reference: bool
    token_penalties: FloatArray | None
    """KL in the reward, per token; None where it was not charged."""
    trace: UpdateTrace | None
    """None where the learner does not tell."""

    def __post_init__(self) -> None:
        traced, tokens = self.trace and len(self.trace.entropies), len(self.batch.token_ids)
        if len(self.experiences) != self.batch.num_rows or traced not in (None, tokens):
            raise ValueError(
                f"LearntBatch: a batch of {self.batch.num_rows} rows and {tokens} tokens, with {len(self.experiences)} "
                f"experiences and a trace of {traced} tokens"
            )

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        batch: Batch,
        report: StepReport,
        *,
        annotated: Sequence[Experience],
        annotations: Annotations,
    ) -> LearntBatch:
        """`annotated` are the experiences that `annotations` are about; a credit rule may have put them in order."""
        penalties = None
        if annotations.token_penalties is not None:
            of_row = {e.id: row for e, row in zip(annotated, annotations.token_penalties, strict=True)}
            penalties = np.concatenate([of_row[sample.experience.id] for sample in samples])
        return cls(
            policy_version=report.policy_version,
            experiences=[sample.experience for sample in samples],
            batch=batch,
            has_values=annotations.values is not None,
            has_reference=annotations.reference_logprobs is not None,
            token_penalties=penalties,
            trace=report.trace,
        )


def choose_rows(experiences: Sequence[Experience], share: Share) -> NDArray[np.int64]:
    """The rows to write down, ascending: whole groups, so that siblings can be compared from the record alone.

    Groups are taken in the order of a hash of their id for as long as they fit. Where not even the first does, its
    trajectories are, in the same way, and at least one.
    """
    lengths = [len(e.segment) for e in experiences]
    if share == "none":
        return np.zeros(0, dtype=np.int64)
    if share == "all" or sum(lengths) <= share:
        return np.arange(len(experiences))
    group_of_row = [e.id.trajectory.group for e in experiences]
    chosen, first = _fill(group_of_row, lengths, share)
    if chosen:
        return np.array([row for row, group in enumerate(group_of_row) if group in chosen])
    members = [row for row, group in enumerate(group_of_row) if group == first]
    names = [str(experiences[row].id.trajectory) for row in members]
    chosen, first = _fill(names, [lengths[row] for row in members], share)
    return np.array([row for row, name in zip(members, names, strict=True) if name in (chosen or {first})])


def _fill(names: Sequence[str], lengths: Sequence[int], max_tokens: int) -> tuple[set[str], str]:
    """The names that fit together, in the order of their hashes, and the first of that order."""
    sizes: dict[str, int] = {}
    for name, length in zip(names, lengths, strict=True):
        sizes[name] = sizes.get(name, 0) + length
    order = sorted(sizes, key=fingerprint)
    # Up to the first that does not fit: going on with smaller ones would prefer short episodes.
    ends = np.cumsum([sizes[name] for name in order])
    return set(order[: int(np.searchsorted(ends, max_tokens, side="right"))]), order[0]


def take_rows(learnt: LearntBatch, rows: NDArray[np.int64]) -> LearntBatch:
    """The same update with some of its rows alone."""
    batch = learnt.batch
    if len(rows) == batch.num_rows:
        return learnt
    lengths = batch.row_lengths[rows]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    index = np.arange(starts[-1]) + np.repeat(batch.row_starts[rows] - starts[:-1], lengths)
    per_token = {f.name: getattr(batch, f.name)[index] for f in fields(batch) if f.name not in _PER_ROW}
    trajectory_of_row = _number(batch.trajectory_of_row[rows].tolist())
    trace = learnt.trace
    if trace is not None:
        arrays = {f.name: getattr(trace, f.name) for f in fields(trace) if f.name != "proximal_steps"}
        traced: dict[str, Any] = {name: None if array is None else array[index] for name, array in arrays.items()}
        trace = UpdateTrace(**traced, proximal_steps=trace.proximal_steps[rows])
    return replace(
        learnt,
        experiences=[learnt.experiences[row] for row in rows],
        batch=Batch(row_starts=starts, trajectory_of_row=trajectory_of_row, **per_token),
        token_penalties=None if learnt.token_penalties is None else learnt.token_penalties[index],
        trace=trace,
    )


def _number(keys: Iterable[int]) -> NDArray[np.int64]:
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)

"""One update as a block of bytes, and back as the tokens of a step.

A header of fixed size with its own checksum, then the columns of all tables: trajectories, rows, turns, tokens, and
what there is of sampled tokens alone. A block needs nothing outside itself, so any of them can be read without the
others. Columns that say nothing new are left out: log-probs of a reference that was not loaded, returns that are the
advantages, ratios of a last epoch that was the first.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnwise.infra.array_codec import pack_columns, unpack_columns
from turnwise.infra.seeds import hash64
from turnwise.report.token_log_reader import RowTable, StepTokens, TurnTable
from turnwise.types import (
    Annotations,
    Batch,
    BoolArray,
    Experience,
    FloatArray,
    Sample,
    StepReport,
    TrajectoryId,
    UpdateTrace,
)

MAGIC, VERSION = b"TWLR", 1
_HEADER = struct.Struct("<4sHHqqQQQQII")
"""Magic, version, 0, step, policy version, bytes of the body, tokens in it, rows and tokens of the whole update, and
the checksums (CRC-32) of the body and of the header before this one."""
HEADER_BYTES = _HEADER.size
_INT, _SHORT, _FLOAT, _BYTE = np.dtype("<i4"), np.dtype("<u2"), np.dtype("<f4"), np.dtype("<u1")
_IS_LAST, _IS_TRUNCATED = 1, 2
_TURNS = {
    "turn.index": ("turn_indices", _INT),
    "turn.raw_reward": ("raw_rewards", _FLOAT),
    "turn.reward": ("turn_rewards", _FLOAT),
    "turn.state": ("turn_states", np.dtype("<u8")),
    "turn.step": ("turn_steps", _INT),
}
_TWINS = {
    "turn.reward": "turn.raw_reward",
    "sampled.return": "sampled.advantage",
    "sampled.last_ratio": "sampled.first_ratio",
}
"""A column that is left out equals this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """What is known of a block before its body is read."""

    version: int
    step: int
    policy_version: int
    num_body_bytes: int
    num_tokens: int
    num_trained_rows: int
    num_trained_tokens: int
    body_checksum: int

    @property
    def num_bytes(self) -> int:
        return HEADER_BYTES + self.num_body_bytes


def encode_block(step: int, learnt: UpdateRecord, *, num_trained_rows: int, num_trained_tokens: int) -> bytes:
    """`num_trained_rows` and `num_trained_tokens` count what the update learnt from, written down or not."""
    columns = {
        **_trajectory_columns(learnt),
        **_row_columns(learnt),
        **{
            name: np.concatenate([getattr(e, field) for e in learnt.experiences]).astype(dtype)
            for name, (field, dtype) in _TURNS.items()
        },
        **_token_columns(learnt.batch),
        **_sampled_columns(learnt),
    }
    for name, twin in _TWINS.items():
        if name in columns and np.array_equal(columns[name], columns[twin]):
            del columns[name]
    body = pack_columns(columns)
    counts = (len(body), len(learnt.batch.token_ids), num_trained_rows, num_trained_tokens, zlib.crc32(body))
    header = _HEADER.pack(MAGIC, VERSION, 0, step, learnt.policy_version, *counts, 0)[:-4]
    return header + struct.pack("<I", zlib.crc32(header)) + body


def _trajectory_columns(learnt: UpdateRecord) -> dict[str, NDArray[Any]]:
    firsts = np.unique(learnt.batch.trajectory_of_row, return_index=True)[1].tolist()
    ids = [learnt.experiences[row].id.trajectory for row in firsts]
    task_ids = {task_id: number for number, task_id in enumerate(dict.fromkeys(i.task_id for i in ids))}
    return {
        "tasks": np.frombuffer("\0".join(task_ids).encode("utf-8", "surrogatepass"), _BYTE),
        "trajectory.task": np.array([task_ids[i.task_id] for i in ids], dtype=_INT),
        "trajectory.rollout": np.array([i.rollout for i in ids], dtype="<i8"),
        "trajectory.sibling": np.array([i.sibling for i in ids], dtype=_INT),
    }


def _row_columns(learnt: UpdateRecord) -> dict[str, NDArray[Any]]:
    rows = learnt.experiences
    flags = [_IS_LAST * e.is_last + _IS_TRUNCATED * e.is_truncated for e in rows]
    columns: dict[str, NDArray[Any]] = {
        "row.trajectory": learnt.batch.trajectory_of_row.astype(_INT),
        "row.segment_index": np.array([e.id.segment_index for e in rows], dtype=_INT),
        "row.num_tokens": learnt.batch.row_lengths.astype(_INT),
        "row.num_turns": np.array([len(e.turn_indices) for e in rows], dtype=_INT),
        "row.policy_version": np.array([e.policy_version for e in rows], dtype="<i8"),
        "row.flags": np.array(flags, dtype=_BYTE),
    }
    if any(e.greedy_return is not None for e in rows):
        columns["row.greedy_return"] = np.array([e.greedy_return for e in rows], dtype="<f8")
    if learnt.trace is not None:
        columns["row.proximal_steps"] = learnt.trace.proximal_steps.astype(_INT)
    return columns


def _token_columns(batch: Batch) -> dict[str, NDArray[Any]]:
    """Ids of all tokens, and the runs of equal turns; they say where tokens were sampled, so no mask is written."""
    ids, turn_ids = batch.token_ids, batch.turn_ids
    # Two bytes are enough for most vocabularies.
    is_short = len(ids) > 0 and ids.min() >= 0 and ids.max() < 1 << 16
    run_starts = np.flatnonzero(np.append(True, turn_ids[1:] != turn_ids[:-1]))
    return {
        "token.id": ids.astype(_SHORT if is_short else _INT),
        "run.length": np.diff(run_starts, append=len(ids)).astype(_INT),
        "run.turn": turn_ids[run_starts].astype(_INT),
    }


def _sampled_columns(learnt: UpdateRecord) -> dict[str, NDArray[Any]]:
    """Nothing is known, and nothing is written, of tokens that were given."""
    batch, trace = learnt.batch, learnt.trace
    kept: dict[str, NDArray[Any]] = {
        "sampled.behavior_logprob": batch.behavior_logprobs,
        "sampled.advantage": batch.advantages,
        "sampled.return": batch.returns,
    }
    if learnt.has_values:
        kept["sampled.value"] = batch.values
    if learnt.has_reference:
        kept["sampled.reference_logprob"] = batch.reference_logprobs
    if learnt.token_penalties is not None:
        kept["sampled.penalty"] = learnt.token_penalties
    if trace is not None:
        kept["sampled.proximal_logprob"] = trace.proximal_logprobs
        kept["sampled.first_ratio"], kept["sampled.last_ratio"] = trace.first_ratios, trace.last_ratios
        kept["sampled.entropy"] = trace.entropies
    columns: dict[str, NDArray[Any]] = {name: array[batch.loss_mask].astype(_FLOAT) for name, array in kept.items()}
    if trace is not None:
        columns["sampled.is_clipped"] = np.packbits(trace.is_clipped[batch.loss_mask])
    return columns


def read_header(data: bytes) -> BlockHeader | None:
    """None where these bytes are not the beginning of a block."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        return None
    _, version, _, *numbers, checksum = _HEADER.unpack_from(data)
    if zlib.crc32(data[: HEADER_BYTES - 4]) != checksum:
        return None
    step, policy_version, *counts, body_checksum = numbers
    num_body_bytes, num_tokens, num_trained_rows, num_trained_tokens = counts
    return BlockHeader(
        version=version,
        step=step,
        policy_version=policy_version,
        num_body_bytes=num_body_bytes,
        num_tokens=num_tokens,
        num_trained_rows=num_trained_rows,
        num_trained_tokens=num_trained_tokens,
        body_checksum=body_checksum,
    )


def decode_block(header: BlockHeader, body: bytes) -> StepTokens:
    """What `encode_block` was given, as tables; a ValueError says why it cannot be read."""
    if header.version > VERSION:
        raise ValueError(f"it has version {header.version}, and this turnwise reads up to {VERSION}")
    if zlib.crc32(body) != header.body_checksum:
        raise ValueError("its checksum is wrong")
    columns = unpack_columns(body)
    for name, twin in _TWINS.items():
        if name not in columns and twin in columns:
            columns[name] = columns[twin]
    try:
        return _decode(header, columns)
    except KeyError as error:
        raise ValueError(f"its column {error} is missing") from error


def _decode(header: BlockHeader, columns: dict[str, NDArray[Any]]) -> StepTokens:
    turn_ids = np.repeat(columns["run.turn"], columns["run.length"])
    mask = turn_ids >= 0
    if not len(mask) == len(columns["token.id"]) == columns["row.num_tokens"].sum() == header.num_tokens:
        raise ValueError(f"its columns do not add up to {header.num_tokens} tokens")

    def per_token(name: str) -> FloatArray:
        array = np.zeros(len(mask), dtype=np.float32)
        if name in columns:
            array[mask] = columns[name]
        return array

    return StepTokens(
        step=header.step,
        policy_version=header.policy_version,
        num_trained_rows=header.num_trained_rows,
        num_trained_tokens=header.num_trained_tokens,
        rows=_decode_rows(columns),
        turns=TurnTable(**{field: columns[name] for name, (field, _) in _TURNS.items()}),
        batch=Batch(
            row_starts=np.concatenate([[0], np.cumsum(columns["row.num_tokens"], dtype=np.int64)]),
            trajectory_of_row=columns["row.trajectory"].astype(np.int64),
            token_ids=columns["token.id"].astype(np.int32),
            loss_mask=mask,
            turn_ids=turn_ids,
            behavior_logprobs=per_token("sampled.behavior_logprob"),
            reference_logprobs=per_token("sampled.reference_logprob"),
            advantages=per_token("sampled.advantage"),
            returns=per_token("sampled.return"),
            values=per_token("sampled.value"),
        ),
        has_values="sampled.value" in columns,
        has_reference="sampled.reference_logprob" in columns,
        token_penalties=per_token("sampled.penalty") if "sampled.penalty" in columns else None,
        trace=_decode_trace(columns, mask, per_token) if "sampled.first_ratio" in columns else None,
    )


def _decode_rows(columns: dict[str, NDArray[Any]]) -> RowTable:
    tasks = columns["tasks"].tobytes().decode("utf-8", "surrogatepass").split("\0")
    numbers = zip(*(columns[f"trajectory.{name}"].tolist() for name in ("rollout", "task", "sibling")), strict=True)
    flags = columns["row.flags"]
    return RowTable(
        trajectory_ids=tuple(TrajectoryId(rollout, tasks[task], sibling) for rollout, task, sibling in numbers),
        segment_indices=columns["row.segment_index"],
        num_turns=columns["row.num_turns"],
        policy_versions=columns["row.policy_version"],
        is_last=flags & _IS_LAST > 0,
        is_truncated=flags & _IS_TRUNCATED > 0,
        greedy_returns=columns.get("row.greedy_return", np.full(len(flags), np.nan)),
    )


def _decode_trace(
    columns: dict[str, NDArray[Any]], mask: BoolArray, per_token: Callable[[str], FloatArray]
) -> UpdateTrace:
    is_clipped = np.zeros(len(mask), dtype=np.bool_)
    is_clipped[mask] = np.unpackbits(columns["sampled.is_clipped"], count=int(np.count_nonzero(mask)))
    return UpdateTrace(
        proximal_logprobs=per_token("sampled.proximal_logprob"),
        proximal_steps=columns["row.proximal_steps"],
        first_ratios=per_token("sampled.first_ratio"),
        last_ratios=per_token("sampled.last_ratio"),
        entropies=per_token("sampled.entropy"),
        is_clipped=is_clipped,
    )


Share: TypeAlias = Literal["all", "none"] | int
"""`report.tokens`: everything, nothing, or at most so many tokens of an update."""
_PER_ROW = frozenset({"row_starts", "trajectory_of_row"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateRecord:
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
                f"UpdateRecord: a batch of {self.batch.num_rows} rows and {tokens} tokens, with "
                f"{len(self.experiences)} experiences and a trace of {traced} tokens"
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
    ) -> UpdateRecord:
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
    order = sorted(sizes, key=hash64)
    # Up to the first that does not fit: going on with smaller ones would prefer short episodes.
    ends = np.cumsum([sizes[name] for name in order])
    return set(order[: int(np.searchsorted(ends, max_tokens, side="right"))]), order[0]


def take_rows(learnt: UpdateRecord, rows: NDArray[np.int64]) -> UpdateRecord:
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

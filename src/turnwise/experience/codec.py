"""A group of experiences as one compact block of bytes, and back, exactly.

A header with magic, version and counts, a table with one fixed record per experience, then every array of all
experiences end to end. Turn ids are written as runs; they say where tokens were sampled, so masks and log-probs off
the mask are not written. Plain arrays throughout: reading a file of others executes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import StoreError
from turnwise.types import Experience, ExperienceId, IntArray, Segment, TrajectoryId

T = TypeVar("T")

_MAGIC, _VERSION = b"TWXP", 1
_HEADER = struct.Struct("<4sHHIIBQ")
"""Magic, version, bytes of the task's id, experiences, runs of turn ids, bytes of a token id, rollout."""
_RECORD = np.dtype(
    [
        ("sibling", "<i4"),
        ("segment_index", "<i4"),
        ("num_tokens", "<i4"),
        ("num_turns", "<i4"),
        ("policy_version", "<i8"),
        ("greedy_return", "<f8"),
        ("flags", "<u1"),
    ]
)
_INT, _SHORT, _FLOAT = np.dtype("<i4"), np.dtype("<u2"), np.dtype("<f4")
_IS_LAST, _IS_TRUNCATED, _HAS_GREEDY = 1, 2, 4
_PER_TURN = (
    ("turn_indices", _INT),
    ("raw_rewards", _FLOAT),
    ("turn_rewards", _FLOAT),
    ("turn_states", np.dtype("<u8")),
    ("turn_steps", _INT),
)


def encode_group(experiences: Sequence[Experience]) -> bytes:
    """The experiences of one group, in order."""
    first = experiences[0].id.trajectory
    task_id = first.task_id.encode()
    records = np.array([_record(experience) for experience in experiences], dtype=_RECORD)
    segments = [experience.segment for experience in experiences]
    turn_ids = np.concatenate([segment.turn_ids for segment in segments])
    token_ids = np.concatenate([segment.token_ids for segment in segments])
    token_type = _token_type(token_ids)
    is_start = np.append(True, turn_ids[1:] != turn_ids[:-1])
    is_start[np.cumsum([len(segment) for segment in segments[:-1]], dtype=np.int64)] = True
    run_starts = np.flatnonzero(is_start)
    arrays = [
        token_ids.astype(token_type),
        run_starts.astype(_INT),
        turn_ids[run_starts].astype(_INT),
        np.concatenate([segment.behavior_logprobs for segment in segments])[turn_ids >= 0].astype(_FLOAT),
        *(np.concatenate([getattr(e, name) for e in experiences]).astype(dtype) for name, dtype in _PER_TURN),
    ]
    counts = (len(task_id), len(experiences), len(run_starts), token_type.itemsize)
    header = _HEADER.pack(_MAGIC, _VERSION, *counts, first.rollout)
    return b"".join([header, task_id, records.tobytes(), *(array.tobytes() for array in arrays)])


def _token_type(token_ids: IntArray) -> np.dtype[Any]:
    """Two bytes are enough for most vocabularies."""
    return _SHORT if len(token_ids) and token_ids.min() >= 0 and token_ids.max() < 1 << 16 else _INT


def decode_group(data: bytes) -> list[Experience]:
    """What `encode_group` was given; anything else is refused."""
    try:
        return _decode(data)
    except (struct.error, ValueError, IndexError) as error:
        raise StoreError(f"a stored group cannot be read: {error}.") from error


def _record(experience: Experience) -> tuple[int | float, ...]:
    flags = _IS_LAST * experience.is_last + _IS_TRUNCATED * experience.is_truncated
    greedy = experience.greedy_return
    return (
        experience.id.trajectory.sibling,
        experience.id.segment_index,
        len(experience.segment),
        len(experience.turn_indices),
        experience.policy_version,
        0.0 if greedy is None else greedy,
        flags if greedy is None else flags + _HAS_GREEDY,
    )


class _Reader:
    """Takes arrays off the front of a block, without copying."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def take(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        array = np.frombuffer(self._data, dtype, count, self._offset)
        self._offset += array.nbytes
        return array

    def finish(self) -> None:
        if self._offset != len(self._data):
            raise ValueError(f"{len(self._data) - self._offset} bytes are left over")


def _decode(data: bytes) -> list[Experience]:
    magic, version, name_length, count, num_runs, token_bytes, rollout = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"it begins with {magic!r} in version {version}, expected {_MAGIC!r} in version {_VERSION}")
    start = _HEADER.size + name_length
    task_id = data[_HEADER.size : start].decode()
    reader = _Reader(data, start)
    records = reader.take(_RECORD, count)
    token_ends, turn_ends = np.cumsum(records["num_tokens"]).tolist(), np.cumsum(records["num_turns"]).tolist()
    num_tokens, num_turns = token_ends[-1], turn_ends[-1]
    token_ids = reader.take(_SHORT if token_bytes == _SHORT.itemsize else _INT, num_tokens).astype(np.int32)
    run_starts, run_turns = reader.take(_INT, num_runs), reader.take(_INT, num_runs)
    turn_ids = np.repeat(run_turns, np.append(run_starts[1:], num_tokens) - run_starts)
    loss_mask = turn_ids >= 0
    logprobs = np.zeros(num_tokens, dtype=np.float32)
    logprobs[loss_mask] = reader.take(_FLOAT, int(np.count_nonzero(loss_mask)))
    per_turn = [reader.take(dtype, num_turns) for _, dtype in _PER_TURN]
    reader.finish()
    _check_turns(records, np.searchsorted(token_ends, run_starts, side="right"), run_turns, per_turn[0])
    experiences = []
    token, turn = 0, 0
    for record, token_end, turn_end in zip(records.tolist(), token_ends, turn_ends, strict=True):
        segment = _restore(
            Segment,
            token_ids=token_ids[token:token_end],
            loss_mask=loss_mask[token:token_end],
            behavior_logprobs=logprobs[token:token_end],
            turn_ids=turn_ids[token:token_end],
        )
        experiences.append(_make(rollout, task_id, record, segment, [array[turn:turn_end] for array in per_turn]))
        token, turn = token_end, turn_end
    return experiences


def _check_turns(records: NDArray[Any], owners: NDArray[np.intp], run_turns: IntArray, turn_indices: IntArray) -> None:
    """Each experience names exactly the turns that its runs show; everything else is so by the form of a block."""
    is_sampled = run_turns >= 0
    # One number for experience and turn: sorting pairs takes eight times as long.
    shown = np.unique(owners[is_sampled] << 32 | run_turns[is_sampled])
    named = np.repeat(np.arange(len(records)), records["num_turns"]) << 32 | turn_indices
    if not np.array_equal(shown, named):
        raise ValueError("its experiences name other turns than were sampled in them")


def _restore(kind: type[T], **fields: object) -> T:
    """An instance without its own checks: `_check_turns` made them for the whole block, in a quarter of the time."""
    instance = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance


def _make(
    rollout: int, task_id: str, record: tuple[Any, ...], segment: Segment, per_turn: Sequence[NDArray[Any]]
) -> Experience:
    sibling, segment_index, _, _, policy_version, greedy_return, flags = record
    turn_indices, raw_rewards, turn_rewards, turn_states, turn_steps = per_turn
    return _restore(
        Experience,
        id=ExperienceId(TrajectoryId(rollout, task_id, sibling), segment_index),
        segment=segment,
        turn_indices=turn_indices,
        raw_rewards=raw_rewards,
        turn_rewards=turn_rewards,
        turn_states=turn_states,
        turn_steps=turn_steps,
        policy_version=policy_version,
        is_last=bool(flags & _IS_LAST),
        is_truncated=bool(flags & _IS_TRUNCATED),
        greedy_return=greedy_return if flags & _HAS_GREEDY else None,
    )

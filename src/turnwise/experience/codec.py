"""A group of experiences as one compact block of bytes, and back, exactly.

A header with magic, version and counts, a table with one fixed record per experience, the numbers of all turns, where
they came from as far as it is known, the segments of all experiences as `infra/array_codec.py` writes them, and a
checksum of all that, so that damage is detected. Plain arrays throughout: reading a third-party file executes nothing.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.config.settings import require_package
from turnwise.errors import StoreError
from turnwise.infra.array_codec import (
    ArrayReader,
    StoredSegments,
    encode_provenance,
    encode_segments,
    read_provenance,
    read_segments,
    restore,
)
from turnwise.infra.atomic_files import atomic_file
from turnwise.infra.parsing import parse_json
from turnwise.provenance import Provenance
from turnwise.types import Experience, ExperienceId, IntArray, Segment, TrajectoryId

_MAGIC, _VERSION = b"TWXP", 4
_WITHOUT_PROVENANCE, _WITHOUT_CHECKSUM = 3, 2
"""The versions before; they are read as well. The older one has neither."""
_HEADER = struct.Struct("<4sHHIQ")
"""Magic, version, bytes of the task's id, experiences, rollout."""
_CHECKSUM = struct.Struct("<I")
_RECORD = np.dtype(
    [
        ("sibling", "<i4"),
        ("segment_index", "<i4"),
        ("num_turns", "<i4"),
        ("policy_version", "<i8"),
        ("greedy_return", "<f8"),
        ("flags", "<u1"),
    ]
)
_INT, _FLOAT, _BYTE = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<u1")
_IS_LAST, _IS_TRUNCATED, _HAS_GREEDY, _HAS_PROVENANCE = 1, 2, 4, 8
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
    per_turn = [np.concatenate([getattr(e, name) for e in experiences]).astype(dtype) for name, dtype in _PER_TURN]
    header = _HEADER.pack(_MAGIC, _VERSION, len(task_id), len(experiences), first.rollout)
    provenance = encode_provenance([e.provenance for e in experiences if e.provenance is not None])
    segments = encode_segments([experience.segment for experience in experiences])
    arrays = [array.tobytes() for array in per_turn]
    body = b"".join([header, task_id, records.tobytes(), *arrays, provenance, segments])
    return body + _CHECKSUM.pack(zlib.crc32(body))


def encode_experiences(experiences: Sequence[Experience]) -> list[bytes]:
    """Any experiences in their order, a block for every stretch of one group: a tenth of what pickling them takes."""
    stretches = groupby(experiences, key=lambda e: (e.id.trajectory.rollout, e.id.trajectory.task_id))
    return [encode_group(list(stretch)) for _, stretch in stretches]


def decode_experiences(blocks: Sequence[bytes]) -> list[Experience]:
    """What `encode_experiences` was given."""
    return [experience for block in blocks for experience in decode_group(block)]


def decode_group(data: bytes) -> list[Experience]:
    """What `encode_group` was given; anything else is refused."""
    try:
        return _decode(_checked(data))
    except (ValueError, IndexError) as error:
        raise StoreError(f"a stored group cannot be read: {error}.") from error


def _record(experience: Experience) -> tuple[int | float, ...]:
    flags = _IS_LAST * experience.is_last + _IS_TRUNCATED * experience.is_truncated
    flags += _HAS_PROVENANCE * (experience.provenance is not None)
    greedy = experience.greedy_return
    return (
        experience.id.trajectory.sibling,
        experience.id.segment_index,
        len(experience.turn_indices),
        experience.policy_version,
        0.0 if greedy is None else greedy,
        flags if greedy is None else flags + _HAS_GREEDY,
    )


def _checked(data: bytes) -> bytes:
    """The block without its checksum, which fits."""
    magic, version, *_ = ArrayReader(data).unpack(_HEADER)
    if magic != _MAGIC or version not in (_VERSION, _WITHOUT_PROVENANCE, _WITHOUT_CHECKSUM):
        raise ValueError(f"it begins with {magic!r} in version {version}, expected {_MAGIC!r} in version {_VERSION}")
    if version == _WITHOUT_CHECKSUM:
        return data
    body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if _CHECKSUM.pack(zlib.crc32(body)) != checksum:
        raise ValueError("its checksum is another one than when it was written")
    return body


def _decode(data: bytes) -> list[Experience]:
    reader = ArrayReader(data)
    _, version, name_length, count, rollout = reader.unpack(_HEADER)
    task_id = reader.take(_BYTE, name_length).tobytes().decode()
    records = reader.take(_RECORD, count)
    turn_ends = np.cumsum(records["num_turns"]).tolist()
    per_turn = [reader.take(dtype, turn_ends[-1]) for _, dtype in _PER_TURN]
    has_provenance = (records["flags"] & _HAS_PROVENANCE > 0) & (version == _VERSION)
    provenance = iter(read_provenance(reader, records["num_turns"][has_provenance]) if version == _VERSION else ())
    stored = read_segments(reader)
    _check_turns(records, stored, per_turn[0])
    experiences = []
    turn = 0
    for record, segment, turn_end in zip(records.tolist(), stored.segments, turn_ends, strict=True):
        arrays = [array[turn:turn_end] for array in per_turn]
        came_from = next(provenance, None) if record[-1] & _HAS_PROVENANCE else None
        name = TrajectoryId(rollout, task_id, record[0])
        experiences.append(_make(name, record, segment, arrays, came_from))
        turn = turn_end
    return experiences


def _check_turns(records: NDArray[Any], stored: StoredSegments, turn_indices: IntArray) -> None:
    """Each experience names exactly the turns that its runs show; everything else is so by the form of a block."""
    is_sampled = stored.run_turns >= 0
    # One number for experience and turn: sorting pairs takes eight times as long.
    shown = np.unique(stored.run_owners[is_sampled] << 32 | stored.run_turns[is_sampled])
    named = np.repeat(np.arange(len(records)), records["num_turns"]) << 32 | turn_indices
    if not np.array_equal(shown, named):
        raise ValueError("its experiences name other turns than were sampled in them")


def _make(
    name: TrajectoryId,
    record: tuple[Any, ...],
    segment: Segment,
    per_turn: Sequence[NDArray[Any]],
    provenance: Provenance | None,
) -> Experience:
    _, segment_index, _, policy_version, greedy_return, flags = record
    turn_indices, raw_rewards, turn_rewards, turn_states, turn_steps = per_turn
    return restore(
        Experience,
        id=ExperienceId(name, segment_index),
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
        provenance=provenance,
    )


_IDS = {"rollout": "int64", "task_id": "string", "sibling": "int32", "segment_index": "int32"}
_FACTS = {"policy_version": "int64", "is_last": "bool", "is_truncated": "bool", "greedy_return": "float64"}
_PER_TOKEN = {"token_ids": "int32", "loss_mask": "bool", "behavior_logprobs": "float32", "turn_ids": "int32"}
_TURN_COLUMNS = {
    "turn_indices": "int32",
    "raw_rewards": "float32",
    "turn_rewards": "float32",
    "turn_states": "uint64",
    "turn_steps": "int32",
}
_ARROW = {"bool": "bool_"}
"""Types that pyarrow calls by another name."""
_ENDINGS = (".parquet", ".jsonl")


def write_experiences(groups: Iterable[Sequence[Experience]], path: Path) -> int:
    """All experiences of all groups, group by group, so that no more than one is in memory; returns how many."""
    is_parquet = _ending(path) == ".parquet"
    write = _write_parquet if is_parquet else _write_jsonl
    with atomic_file(path, error=StoreError) as unfinished:
        return write(groups, unfinished)


def read_experiences(path: Path) -> list[Experience]:
    """Everything in a file that `write_experiences` wrote, or another program in the same columns."""
    is_parquet = _ending(path) == ".parquet"
    if not path.is_file():
        raise StoreError(f"{path} does not exist; expected a file that 'turnwise export' wrote.")
    rows = enumerate(_parquet_rows(path) if is_parquet else _jsonl_rows(path), start=1)
    experiences = []
    for number, row in rows:
        try:
            experiences.append(_from_row(row))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"column {error} is missing" if isinstance(error, KeyError) else str(error)
            raise StoreError(f"{path}, row {number} is no experience: {what}.") from error
    return experiences


def _ending(path: Path) -> str:
    if path.suffix not in _ENDINGS:
        raise StoreError(f"{path}: expected a file that ends in {' or '.join(_ENDINGS)}.")
    return path.suffix


def _to_row(experience: Experience) -> dict[str, Any]:
    trajectory = experience.id.trajectory
    return {
        "rollout": trajectory.rollout,
        "task_id": trajectory.task_id,
        "sibling": trajectory.sibling,
        "segment_index": experience.id.segment_index,
        **{name: getattr(experience, name) for name in _FACTS},
        **{name: getattr(experience.segment, name).tolist() for name in _PER_TOKEN},
        **{name: getattr(experience, name).tolist() for name in _TURN_COLUMNS},
    }


def _from_row(row: dict[str, Any]) -> Experience:
    trajectory = TrajectoryId(int(row["rollout"]), str(row["task_id"]), int(row["sibling"]))
    per_turn: dict[str, Any] = {name: np.array(row[name], dtype=dtype) for name, dtype in _TURN_COLUMNS.items()}
    return Experience(
        id=ExperienceId(trajectory, int(row["segment_index"])),
        segment=Segment(**{name: np.array(row[name], dtype=dtype) for name, dtype in _PER_TOKEN.items()}),
        **per_turn,
        policy_version=int(row["policy_version"]),
        is_last=bool(row["is_last"]),
        is_truncated=bool(row["is_truncated"]),
        greedy_return=None if row["greedy_return"] is None else float(row["greedy_return"]),
    )


def _write_jsonl(groups: Iterable[Sequence[Experience]], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for group in groups:
            file.writelines(json.dumps(_to_row(experience)) + "\n" for experience in group)
            count += len(group)
    return count


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise StoreError(f"{path}, line {number} is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise StoreError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}.")
            yield row


def _write_parquet(groups: Iterable[Sequence[Experience]], path: Path) -> int:
    pyarrow, parquet = _require("pyarrow"), _require("pyarrow.parquet")
    single = {name: getattr(pyarrow, _ARROW.get(dtype, dtype))() for name, dtype in (_IDS | _FACTS).items()}
    lists = {
        name: pyarrow.list_(getattr(pyarrow, _ARROW.get(dtype, dtype))())
        for name, dtype in (_PER_TOKEN | _TURN_COLUMNS).items()
    }
    schema = pyarrow.schema(list((single | lists).items()))
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for group in groups:
            writer.write_table(pyarrow.Table.from_pylist([_to_row(e) for e in group], schema=schema))
            count += len(group)
    return count


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    pyarrow, parquet = _require("pyarrow"), _require("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise StoreError(f"{path} cannot be read as Parquet: {error}.") from error


def _require(module: str) -> Any:
    return require_package(module, extra="data", asked_by="a file that ends in .parquet (.jsonl needs nothing)")

"""Segments as one compact block of bytes, and back, exactly.

A header with magic, version and counts, the length of each segment, then every array of all segments end to end. Turn
ids are written as runs; they say where tokens were sampled, so masks and log-probs off the mask are not written. Plain
arrays throughout: reading a block of others executes nothing, and one that does not fit together is a `ValueError`.
It refuses to know what the segments are parts of, and where blocks are kept.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from turnwise.provenance import Provenance
from turnwise.types import IntArray, Segment

T = TypeVar("T")

_MAGIC, _VERSION = b"TWSG", 1
_HEADER = struct.Struct("<4sBBII")
"""Magic, version, bytes of a token id, segments, runs of turn ids."""
_INT, _SHORT, _LENGTH, _FLOAT = np.dtype("<i4"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<f4")


def encode_segments(segments: Sequence[Segment]) -> bytes:
    """Log-probs off the mask are 0 by their contract, and so they come back."""
    lengths = np.array([len(segment) for segment in segments], dtype=_LENGTH)
    turn_ids = _join([segment.turn_ids for segment in segments])
    token_ids = _join([segment.token_ids for segment in segments])
    logprobs = _join([segment.behavior_logprobs for segment in segments])
    token_type = _token_type(token_ids)
    run_starts = _run_starts(turn_ids, lengths)
    arrays = [
        lengths,
        token_ids.astype(token_type),
        run_starts.astype(_INT),
        turn_ids[run_starts].astype(_INT),
        logprobs[turn_ids >= 0].astype(_FLOAT),
    ]
    header = _HEADER.pack(_MAGIC, _VERSION, token_type.itemsize, len(segments), len(run_starts))
    return b"".join([header, *(array.tobytes() for array in arrays)])


def decode_segments(data: bytes) -> list[Segment]:
    """What `encode_segments` was given; anything else is a `ValueError`."""
    return read_segments(ArrayReader(data)).segments


def encode_text(segments: Sequence[Segment]) -> str:
    """The block as text for JSON, with a checksum; prompts that segments have in common take little space."""
    # The quickest level: it takes a fraction of what the episode took.
    return b64encode(zlib.compress(encode_segments(segments), level=1)).decode()


def decode_text(text: str) -> list[Segment]:
    try:
        return decode_segments(zlib.decompress(b64decode(text)))
    except zlib.error as error:
        raise ValueError(f"tokens that cannot be unpacked: {error}") from error


class ArrayReader:
    """Takes arrays off the front of a block, without copying."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self._offset = offset

    def take(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        array = np.frombuffer(self._data, dtype, count, self._offset)
        self._offset += array.nbytes
        return array

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        try:
            values = form.unpack_from(self._data, self._offset)
        except struct.error as error:
            raise ValueError(str(error)) from error
        self._offset += form.size
        return values

    def finish(self) -> None:
        if self._offset != len(self._data):
            raise ValueError(f"{len(self._data) - self._offset} bytes are left over")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegments:
    """Segments with the runs of equal turn ids in them; a run is in one segment."""

    segments: list[Segment]
    run_owners: NDArray[np.intp]
    """The segment of each run."""
    run_turns: IntArray


def read_segments(reader: ArrayReader) -> StoredSegments:
    """The block that is the rest of what a reader reads."""
    magic, version, token_bytes, count, num_runs = reader.unpack(_HEADER)
    if magic != _MAGIC or version != _VERSION or token_bytes not in (_SHORT.itemsize, _INT.itemsize):
        raise ValueError(f"it begins with {magic!r} in version {version}, expected {_MAGIC!r} in version {_VERSION}")
    ends = np.cumsum(reader.take(_LENGTH, count), dtype=np.int64)
    num_tokens = int(ends[-1]) if count else 0
    token_ids = reader.take(_SHORT if token_bytes == _SHORT.itemsize else _INT, num_tokens).astype(np.int32)
    run_starts, run_turns = reader.take(_INT, num_runs), reader.take(_INT, num_runs)
    turn_ids = _repeat_runs(run_starts, run_turns, num_tokens)
    loss_mask = turn_ids >= 0
    logprobs = np.zeros(num_tokens, dtype=np.float32)
    logprobs[loss_mask] = reader.take(_FLOAT, int(np.count_nonzero(loss_mask)))
    reader.finish()
    segments, start = [], 0
    for end in ends.tolist():
        segment = restore(
            Segment,
            token_ids=token_ids[start:end],
            loss_mask=loss_mask[start:end],
            behavior_logprobs=logprobs[start:end],
            turn_ids=turn_ids[start:end],
        )
        segments.append(segment)
        start = end
    owners = np.searchsorted(ends, run_starts, side="right")
    return StoredSegments(segments=segments, run_owners=owners, run_turns=run_turns)


def restore(kind: type[T], **fields: object) -> T:
    """An instance without its own checks, in a quarter of the time: for what is right by the form of a block."""
    instance = object.__new__(kind)
    # Looked up once: this line is run a hundred times for a group.
    set_field = object.__setattr__
    for name, value in fields.items():
        set_field(instance, name, value)
    return instance


def _join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=_INT)


def _token_type(token_ids: IntArray) -> np.dtype[Any]:
    """Two bytes are enough for most vocabularies."""
    return _SHORT if len(token_ids) and token_ids.min() >= 0 and token_ids.max() < 1 << 16 else _INT


def _run_starts(turn_ids: IntArray, lengths: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Where another turn or another segment begins."""
    is_start = np.empty(len(turn_ids) + 1, dtype=np.bool_)
    is_start[1:-1] = turn_ids[1:] != turn_ids[:-1]
    is_start[0] = True
    is_start[np.cumsum(lengths, dtype=np.int64)] = True
    return np.flatnonzero(is_start[:-1])


def _repeat_runs(starts: NDArray[np.int32], turns: IntArray, num_tokens: int) -> IntArray:
    if num_tokens == 0 and len(starts) == 0:
        return np.zeros(0, dtype=np.int32)
    if len(starts) == 0 or starts[0] != 0 or starts[-1] >= num_tokens:
        raise ValueError("its runs of turn ids do not cover its tokens")
    return np.repeat(turns, np.append(starts[1:], num_tokens) - starts)


_COUNT = struct.Struct("<I")
_ENTRY = np.dtype([("name", "S32"), ("dtype", "<u1"), ("packing", "<u1"), ("num_values", "<u8"), ("num_bytes", "<u8")])
_DTYPES = tuple(np.dtype(code) for code in ("<u1", "<u2", "<i4", "<i8", "<u8", "<f4", "<f8"))
"""An entry names its type by the place in here; new ones come behind the others."""
_PLAIN, _PLANES = 0, 1
_LEVEL = 1
"""The quickest: higher levels save a few per cent more and take several times as long."""


def pack_columns(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Flat arrays of the known types; names of at most 32 ASCII letters."""
    entries = np.zeros(len(columns), dtype=_ENTRY)
    parts: list[bytes] = []
    for entry, (name, array) in zip(entries, columns.items(), strict=True):
        packing, data = _pack(array)
        entry["name"], entry["dtype"], entry["packing"] = name.encode(), _DTYPES.index(array.dtype), packing
        entry["num_values"], entry["num_bytes"] = len(array), len(data)
        parts.append(data)
    return b"".join([_COUNT.pack(len(columns)), entries.tobytes(), *parts])


def unpack_columns(data: bytes) -> dict[str, NDArray[Any]]:
    """What `pack_columns` was given; a ValueError says what does not fit."""
    try:
        (count,) = _COUNT.unpack_from(data)
        entries = np.frombuffer(data, _ENTRY, count, _COUNT.size)
    except struct.error as error:
        raise ValueError(f"its table of columns is cut off: {error}") from error
    columns, offset = {}, _COUNT.size + entries.nbytes
    for name, code, packing, num_values, num_bytes in entries.tolist():
        end = offset + num_bytes
        if code >= len(_DTYPES) or packing not in (_PLAIN, _PLANES) or end > len(data):
            raise ValueError(f"its column {name!r} cannot be read")
        columns[name.decode()] = _unpack(data[offset:end], _DTYPES[code], packing, num_values)
        offset = end
    if offset != len(data):
        raise ValueError(f"{len(data) - offset} bytes are left over")
    return columns


def _pack(array: NDArray[Any]) -> tuple[int, bytes]:
    """All first bytes of the numbers, then all second bytes, …: signs and exponents are alike and shrink together."""
    plain = array.tobytes()
    planes = np.frombuffer(plain, np.uint8).reshape(-1, array.itemsize).T
    packed = zlib.compress(planes.tobytes(), _LEVEL)
    return (_PLANES, packed) if len(packed) < len(plain) else (_PLAIN, plain)


def _unpack(data: bytes, dtype: np.dtype[Any], packing: int, num_values: int) -> NDArray[Any]:
    num_bytes = num_values * dtype.itemsize
    if packing == _PLANES:
        try:
            # One byte more than announced is enough to see that there are too many.
            data = zlib.decompressobj().decompress(data, num_bytes + 1)
        except zlib.error as error:
            raise ValueError(f"a column cannot be unpacked: {error}") from error
    if len(data) != num_bytes:
        raise ValueError(f"a column of {num_bytes} bytes was announced, and there are {len(data)}")
    if packing == _PLANES:
        data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    return np.frombuffer(data, dtype)


_NAMES = struct.Struct("<I")
"""Bytes of the engines' names, put together with NUL between them."""
_BYTE = np.dtype("<u1")
_PER_TURN = (
    ("requests", np.dtype("<u8")),
    ("policy_versions", np.dtype("<i8")),
    ("temperatures", np.dtype("<f8")),
    ("digests", np.dtype("<u4")),
    ("seals", np.dtype("<u4")),
    ("is_as_asked", np.dtype("?")),
)


def encode_provenance(parts: Sequence[Provenance]) -> bytes:
    """That of all experiences that have one, in order."""
    engines = [engine for part in parts for engine in part.engines]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(engines))}
    names = "\0".join(numbers).encode()
    arrays = [np.array([numbers[engine] for engine in engines], dtype=_BYTE)]
    arrays += [
        np.concatenate([getattr(part, name) for part in parts] or [[]]).astype(dtype) for name, dtype in _PER_TURN
    ]
    return b"".join([_NAMES.pack(len(names)), names, *(array.tobytes() for array in arrays)])


def read_provenance(reader: ArrayReader, num_turns: NDArray[Any]) -> list[Provenance]:
    """One for each of these experiences; `num_turns` says how many turns they have."""
    (length,) = reader.unpack(_NAMES)
    names = reader.take(_BYTE, length).tobytes().decode().split("\0")
    total = int(num_turns.sum())
    engines = [names[number] for number in reader.take(_BYTE, total).tolist()]
    arrays = {name: reader.take(dtype, total) for name, dtype in _PER_TURN}
    parts, start = [], 0
    for end in np.cumsum(num_turns).tolist():
        fields = {name: array[start:end] for name, array in arrays.items()}
        parts.append(restore(Provenance, engines=tuple(engines[start:end]), **fields))
        start = end
    return parts

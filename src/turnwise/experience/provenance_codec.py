"""Where turns came from as a part of a block of bytes, and back, exactly.

The names of the engines, then one array over the turns of all experiences for each field. It refuses to know what the
turns are parts of.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.floor.segments import ArrayReader, restore
from turnwise.provenance import Provenance

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

"""Named arrays as bytes, and back, exactly.

A count, a table with one fixed record per column, then the data of all columns end to end. A reader that meets a column
it does not know passes over it. Plain little-endian numbers throughout: reading a file of others executes nothing, and
unpacks no more bytes than its table announces.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

"""Values and files as no friend would send them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

FRAGMENTS = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 300,
    b"null", b"''", b'"', b"\r\n", b"\n", b"\t", b"- ", b": ", b"? ", b"&a *a", b"${env:HOME}", b"${oc.env:X,y}",
    b"${a",
    b"!!python/object/apply:os.system [x]", b"<think>", b"</answer>", b"<tool_call>", b"%s%n", b"../" * 30,
    b"(" * 300, b"{" * 300,
    "\u202e\u0000é🙂".encode(),
)  # fmt: skip
"""What readers trip over: halves of characters, numbers without end, depth, and words of other languages."""


@st.composite
def damaged(draw: Callable[..., Any], whole: bytes) -> bytes:
    """A file with up to four wounds: bytes changed, cut out, put in or doubled, or its end missing."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(1, 40))
        match draw(st.sampled_from(("change", "cut", "put in", "double", "end"))):
            case "change":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del data[at : at + length]
            case "put in":
                data[at:at] = draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=20))
            case "double":
                data[at:at] = data[at : at + length]
            case _:
                del data[at:]
    return bytes(data)


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


_endless = st.sampled_from([5000, 6000]).map(lambda digits: 10**digits)
"""Python refuses to write them down."""
texts = st.text(max_size=30) | st.sampled_from(["\ud800", "a\udfff", "", "no", "nan", "x" * 5000, "\x00", "🙂"])
numbers = st.integers() | st.floats() | st.sampled_from([10**400, 1e39, math.nan, math.inf, 2**63]) | _endless
scalars = st.none() | st.booleans() | numbers | texts | st.binary(max_size=9) | st.dates()
odd = st.sampled_from(
    [
        np.float32("nan"), np.int64(3), np.bool_(True), np.array([1.0, 2.0]), np.array(1.0), np.array([]), 1j, object(),
        Speechless(), len, Speechless, range(3), datetime.timedelta(1),
    ]
)  # fmt: skip
values = st.recursive(
    scalars | odd,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
"""Anything that Python has."""
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.sampled_from(["${env:HOME}", "${a.b}", "a:b", "1e3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=6,
)
"""Anything that a YAML file has."""

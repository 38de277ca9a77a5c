"""One block for segments: what goes in comes out, bit for bit, and what was damaged is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.infra.array_codec import decode_segments, decode_text, encode_segments, encode_text
from turnwise.types import Segment

FLOATS = st.floats(width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0])


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Any tokens: none at all, of two bytes or four, with log-probs of any kind where they were sampled."""
    largest = draw(st.sampled_from([1, 2**16 - 1, 2**16, 2**31 - 1]))
    turn_ids = draw(st.lists(st.integers(-1, 3) | st.just(2**31 - 1), max_size=12))
    token_ids = draw(st.lists(st.integers(0, largest), min_size=len(turn_ids), max_size=len(turn_ids)))
    logprobs = [draw(FLOATS) if turn >= 0 else 0.0 for turn in turn_ids]
    return make_segment(token_ids, turn_ids, logprobs)


def make_segment(token_ids: list[int], turn_ids: list[int], logprobs: list[float]) -> Segment:
    turns = np.array(turn_ids, dtype=np.int32)
    return Segment(
        token_ids=np.array(token_ids, dtype=np.int32),
        loss_mask=turns >= 0,
        behavior_logprobs=np.array(logprobs, dtype=np.float32),
        turn_ids=turns,
    )


def bits(segment: Segment) -> dict[str, tuple[np.dtype, bytes]]:
    """NaN is not equal to itself; its bits are."""
    return {name: (getattr(segment, name).dtype, getattr(segment, name).tobytes()) for name in Segment.__slots__}


@given(given_segments=st.lists(segments(), max_size=4))
def test_segments_come_back_bit_for_bit(given_segments: list[Segment]) -> None:
    expected = [bits(segment) for segment in given_segments]
    assert [bits(segment) for segment in decode_segments(encode_segments(given_segments))] == expected
    assert [bits(segment) for segment in decode_text(encode_text(given_segments))] == expected


def test_segments_pass_their_own_checks_when_they_come_back() -> None:
    (segment,) = decode_segments(encode_segments([make_segment([5, 6, 7], [-1, 0, 0], [0, -1, -2])]))
    Segment(**{name: getattr(segment, name) for name in Segment.__slots__})
    segment.behavior_logprobs[1] = -3.0


def test_token_ids_take_two_bytes_where_they_fit_and_turn_ids_next_to_none() -> None:
    def size(num_tokens: int, token: int) -> int:
        return len(encode_segments([make_segment([token] * num_tokens, [-1] * num_tokens, [0] * num_tokens)]))

    assert size(2000, 2**16 - 1) - size(1000, 2**16 - 1) == 2000
    assert size(2000, 2**16) - size(1000, 2**16) == 4000


def test_prompts_that_segments_share_take_little_room_as_text() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 50_000, size=500).tolist()
    one = make_segment(prompt, [-1] * 500, [0] * 500)
    assert len(encode_text([one] * 10)) < 1.5 * len(encode_text([one]))


BLOCK = encode_segments([make_segment([5, 6, 7], [-1, 0, 0], [0, -1, -2]), make_segment([8], [2], [-1])])
RUNS = struct.Struct("<3i3i")
"""Where each run begins, and its turn: before them are the header, two lengths and four tokens of two bytes."""
RUNS_AT = 14 + 2 * 4 + 4 * 2


def with_runs(*numbers: int) -> bytes:
    return BLOCK[:RUNS_AT] + RUNS.pack(*numbers) + BLOCK[RUNS_AT + RUNS.size :]


def test_the_test_knows_the_layout() -> None:
    assert with_runs(0, 1, 3, -1, 0, 2) == BLOCK


@pytest.mark.parametrize(
    "block",
    [
        b"",
        BLOCK[:10],
        BLOCK[:-1],
        BLOCK + b"x",
        b"NOPE" + BLOCK[4:],
        BLOCK[:4] + b"\x09" + BLOCK[5:],
        BLOCK[:5] + b"\x03" + BLOCK[6:],
        BLOCK[:14] + b"\xff\xff\xff\xff" + BLOCK[18:],
        with_runs(1, 1, 3, -1, 0, 2),
        with_runs(0, 3, 1, -1, 0, 2),
        with_runs(0, 1, 4, -1, 0, 2),
        with_runs(0, 1, 3, -1, -1, 2),
    ],
)
def test_a_damaged_block_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words are those of whoever notices first
        decode_segments(block)


@given(data=st.data())
def test_any_changed_letter_of_a_text_is_noticed(data: st.DataObject) -> None:
    text = encode_text([make_segment(list(range(50)), [-1] * 25 + [0] * 25, [0.0] * 25 + [-0.5] * 25)])
    place = data.draw(st.integers(0, len(text.rstrip("=")) - 2))
    letter = data.draw(st.sampled_from("ABCDwxyz0123"))
    if letter == text[place]:
        return
    with pytest.raises(ValueError):  # noqa: PT011
        decode_text(text[:place] + letter + text[place + 1 :])

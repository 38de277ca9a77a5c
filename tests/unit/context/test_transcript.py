from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.context.recorder import Transcript
from turnwise.types import Message

from .chat_families import APPENDING, FAMILIES, completion_from_text, play, template_of

_IDS = st.lists(st.integers(0, 400), max_size=6)
_TURN = st.tuples(st.text(alphabet="PO_G \n", max_size=6), _IDS.filter(bool), st.booleans())


@pytest.mark.parametrize("name", FAMILIES)
@given(turns=st.lists(_TURN, min_size=1, max_size=4), forced=st.sampled_from(["", "<think>"]))
@settings(max_examples=25, deadline=None)
def test_segments_are_what_the_engine_saw_and_sampled(name, turns, forced) -> None:
    template = template_of(name)
    stop = min(template.stop_ids)
    episode = [
        (observation, completion_from_text([*ids, stop] if is_closed else ids, is_closed=is_closed))
        for observation, ids, is_closed in turns
    ]
    played = play(template, [Message("user", "x"), Message("assistant", "y")], episode, forced_prefix=forced)
    segments = played.segments
    assert len(segments) == (1 if name in APPENDING else len(turns))
    sampled: dict[tuple[int, int], tuple[int, float, int]] = {}
    for turn, ((prompt, reply), (_, completion)) in enumerate(zip(played.calls, episode, strict=True)):
        index = 0 if len(segments) == 1 else turn
        segment = segments[index]
        assert segment.token_ids[: len(prompt) + len(reply)].tolist() == [*prompt.tolist(), *reply.tolist()]
        for offset, (token, logprob) in enumerate(zip(reply, completion.behavior_logprobs, strict=True)):
            sampled[index, len(prompt) + offset] = (int(token), float(logprob), turn)
    for index, segment in enumerate(segments):
        for place in range(len(segment)):
            expected = sampled.get((index, place))
            assert bool(segment.loss_mask[place]) is (expected is not None)
            told = (
                int(segment.token_ids[place]),
                float(segment.behavior_logprobs[place]),
                int(segment.turn_ids[place]),
            )
            assert told == (expected or (told[0], 0.0, -1))
    assert sum(map(len, segments)) == sum(len(s) for s in segments if s.num_action_tokens)
    assert segments[-1].token_ids[-len(episode[-1][1].token_ids) :].tolist() == episode[-1][1].token_ids.tolist()


def _ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_two_turns_as_in_the_types() -> None:
    transcript = Transcript()
    transcript.add_context(_ids(1, 2))
    transcript.add_sampled(completion_from_text([3, 9]), 0)
    transcript.add_context(_ids(4))
    assert transcript.current_ids.tolist() == [1, 2, 3, 9, 4]
    assert transcript.num_tokens == 5
    transcript.add_sampled(completion_from_text([5]), 1)
    (segment,) = transcript.segments()
    assert segment.token_ids.tolist() == [1, 2, 3, 9, 4, 5]
    assert segment.loss_mask.tolist() == [False, False, True, True, False, True]
    assert segment.behavior_logprobs.tolist() == [0, 0, -0.5, -1.5, 0, -0.5]
    assert segment.turn_ids.tolist() == [-1, -1, 0, 0, -1, 1]


def test_a_segment_without_sampled_tokens_is_dropped() -> None:
    transcript = Transcript()
    transcript.add_context(_ids(1))
    transcript.start_segment()
    transcript.start_segment()
    assert transcript.num_tokens == 0
    assert transcript.segment_index == 0
    transcript.add_context(_ids(2))
    transcript.add_sampled(completion_from_text([3]), 0)
    transcript.start_segment()
    assert transcript.segment_index == 1
    transcript.add_context(_ids(4))
    assert transcript.current_ids.tolist() == [4]
    assert [segment.token_ids.tolist() for segment in transcript.segments()] == [[2, 3]]


def test_an_empty_transcript_has_no_segments() -> None:
    assert Transcript().segments() == ()


def test_what_was_handed_out_does_not_change() -> None:
    transcript = Transcript()
    transcript.add_context(_ids(1))
    seen = transcript.current_ids
    seen[0] = 7
    transcript.add_sampled(completion_from_text([2]), 0)
    assert transcript.current_ids.tolist() == [1, 2]


def test_a_negative_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="count from 0"):
        Transcript().add_sampled(completion_from_text([1]), -1)

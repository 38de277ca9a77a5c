"""Tokens become segments: the append-only record of one episode.

In come ids, from the template as context and from the engine as completions; out come Segments that hold exactly what
the engine saw and sampled. It refuses to know text, rewards and templates, and has no way to change a token that is
written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from turnwise.types import Completion, IntArray, Segment


@dataclass(slots=True)
class _Open:
    """A segment that still grows; the four lists grow together."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    behavior_logprobs: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)

    def close(self) -> Segment:
        return Segment(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            loss_mask=np.array(self.loss_mask, dtype=np.bool_),
            behavior_logprobs=np.array(self.behavior_logprobs, dtype=np.float32),
            turn_ids=np.array(self.turn_ids, dtype=np.int32),
        )


class Transcript:
    """Collects the tokens of one episode; a mask bit is written by the call that writes its token.

    Example, the two turns of `types.Segment`::

        transcript.add_context(template.encode_prompt(messages))
        transcript.add_sampled(completion, turn_index=0)
        transcript.add_context(template.encode_bridge([Message("user", "_POG")], reply_is_closed=True))
        transcript.add_sampled(completion, turn_index=1)
        (segment,) = transcript.segments()
    """

    def __init__(self) -> None:
        self._segments = [_Open()]
        self._num_kept = 0

    def add_context(self, token_ids: IntArray) -> None:
        """Tokens that the policy did not sample: prompts, bridges, forced prefixes. Never trained."""
        num_new = len(token_ids)
        current = self._segments[-1]
        current.token_ids.extend(token_ids.tolist())
        current.loss_mask.extend([False] * num_new)
        current.behavior_logprobs.extend([0.0] * num_new)
        current.turn_ids.extend([-1] * num_new)

    def add_sampled(self, completion: Completion, turn_index: int) -> None:
        """Tokens that the policy sampled in this turn, the sampled end of turn included."""
        if turn_index < 0:
            raise ValueError(f"turn_index is {turn_index}; turns count from 0")
        num_new = len(completion.token_ids)
        current = self._segments[-1]
        current.token_ids.extend(completion.token_ids.tolist())
        current.loss_mask.extend([True] * num_new)
        current.behavior_logprobs.extend(completion.behavior_logprobs.tolist())
        current.turn_ids.extend([turn_index] * num_new)

    def start_segment(self) -> None:
        """The engine will see a new sequence: what is added next has nothing before it."""
        if self._segments[-1].token_ids:
            self._num_kept += any(self._segments[-1].loss_mask)
            self._segments.append(_Open())

    @property
    def current_ids(self) -> IntArray:
        """Everything of the current segment: what the engine must see to continue it."""
        return np.array(self._segments[-1].token_ids, dtype=np.int32)

    @property
    def num_tokens(self) -> int:
        """The length of the current segment, which is what must fit into the model's context."""
        return len(self._segments[-1].token_ids)

    @property
    def segment_index(self) -> int:
        """The place in `segments()` that the current segment has, or will have once something is sampled in it."""
        return self._num_kept

    def segments(self) -> tuple[Segment, ...]:
        """Every segment with at least one sampled token, in order.

        A segment without one teaches nothing: it is a prompt whose turn never came (the engine failed, or the episode
        was stopped by a budget after the cut).
        """
        return tuple(segment.close() for segment in self._segments if any(segment.loss_mask))

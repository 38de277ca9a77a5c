"""What a chat template writes around texts: the frame of a conversation, and slots that are filled with one text.

`infer_*` functions take a `TokenizerAdapter` and conversations rendered with it. They return frames, the token that
ends a reply, and `Slot`s, which give the ids of a user's text in its place without rendering anything. Every slot is
compared with the tokenizer's own rendering on probe texts before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.context.tokenizer import THINK_TAGS, SpecialTokenEscaper, TokenizerAdapter
from turnwise.errors import ModelError
from turnwise.types import IntArray, Message

ASKED, REPLIED, ASKED_AGAIN = "qzaskedqz", "qzrepliedqz", "qzaskedagainqz"
"""Contents of the probe conversation: words that no template writes itself and none edits."""
USER_PROBES = ("P_OG\n#..#", "\n  two lines\n\nand a tab\t ", "Reward: 0.5. 日本 🙂", "(Up || Down)")


def _keep(text: str) -> str:
    return text


_EDITS: tuple[Callable[[str], str], ...] = (_keep, str.strip, str.lstrip, str.rstrip)
"""What templates do to a user's text before they write it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A fixed surrounding for a user's text. Only `before`, the text and `after` are tokenised when it is filled."""

    ids_before: IntArray
    before: str
    """Starts with an added token, so that what comes ahead of it has no say in how the text is tokenised."""
    after: str
    """Ends with an added token, for the same reason."""
    ids_after: IntArray
    edit: Callable[[str], str]
    guard: SpecialTokenEscaper
    controls: list[int]
    """The control ids that the template itself writes in `before` and `after`, in order."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What the template writes around the contents of a two-turn conversation."""

    first: str
    reply_header: str
    between: str
    """From the end of the first reply to the second user text."""
    next_header: str


@dataclass(frozen=True, slots=True)
class EndOfTurn:
    id: int
    text: str
    gap: str
    """From the end of turn to the next user text."""


def as_ids(token_ids: Sequence[int]) -> IntArray:
    return np.array(token_ids, dtype=np.int32)


def probe_messages() -> list[Message]:
    return [Message("user", ASKED), Message("assistant", REPLIED), Message("user", ASKED_AGAIN)]


def learn_frame(codec: TokenizerAdapter) -> Frame:
    rest, pieces = codec.render(probe_messages()), []
    for message in probe_messages():
        if rest.count(message.text) != 1:
            raise ModelError(
                f"The chat template does not write the text of the {message.role} exactly once: a probe conversation "
                f"was rendered as {codec.render(probe_messages())[:300]!r}. Expected a template for conversations of "
                "plain text over many turns. Use another chat template, or put one next to tokenizer_config.json."
            )
        piece, rest = rest.split(message.text)
        pieces.append(piece)
    first, reply_header, between = pieces
    return Frame(first, reply_header, between, rest)


def learn_end_of_turn(codec: TokenizerAdapter, frame: Frame) -> EndOfTurn | None:
    """The first added token after a reply, whatever its name: an eos, an end of turn, or the next role's header."""
    spans = [span for span in codec.added_in(frame.between) if frame.between[slice(*span)] not in THINK_TAGS]
    if not spans:
        return None
    start, stop = min(spans)
    spelling = frame.between[start:stop]
    token_id = codec.ids_by_spelling[spelling]
    if token_id == codec.bos_id and token_id != codec.eos_id:
        # The template begins anew here and never closed the reply: no policy would learn to sample this token.
        return None
    return EndOfTurn(token_id, spelling, frame.between[stop:])


def learn_edit(render: Callable[[str], str], before: str, after: str) -> Callable[[str], str] | None:
    """Which of the known edits gives what the template makes of every probe; None if it is another one."""
    rendered = {probe: render(probe) for probe in USER_PROBES}
    for edit in _EDITS:
        if all(before + edit(probe) + after == text for probe, text in rendered.items()):
            return edit
    return None


def make_slot(
    codec: TokenizerAdapter, guard: SpecialTokenEscaper, before: str, after: str, edit: Callable[[str], str]
) -> Slot:
    """The slot that tokenises least, if it gives the ids of the whole text on every probe; else the whole."""
    whole = _slot_between(codec, guard, ("", before, after, ""), edit)
    start = max((begin for begin, _ in codec.added_in(before)), default=0)
    stop = min((end for _, end in codec.added_in(after)), default=len(after))
    short = _slot_between(codec, guard, (before[:start], before[start:], after[:stop], after[stop:]), edit)
    is_same = all(
        np.array_equal(fill(codec, short, text), fill(codec, whole, text)) for text in (*USER_PROBES, ASKED, "", " ")
    )
    return short if is_same else whole


def _slot_between(
    codec: TokenizerAdapter, guard: SpecialTokenEscaper, pieces: tuple[str, str, str, str], edit: Callable[[str], str]
) -> Slot:
    done, before, after, rest = pieces
    ids_after = codec.encode(after + rest)[len(codec.encode(after)) :]
    controls = guard.controls_in(as_ids(codec.encode(before + ASKED + after)))
    return Slot(as_ids(codec.encode(done)), before, after, as_ids(ids_after), edit, guard, controls)


def fill(codec: TokenizerAdapter, slot: Slot, user_text: str) -> IntArray:
    """Runs once for every turn of every episode."""
    token_ids = as_ids(codec.encode(slot.before + slot.edit(user_text) + slot.after))
    if slot.guard.controls_in(token_ids) != slot.controls:
        token_ids = _encode_safely(codec, slot, user_text)
    return np.concatenate((slot.ids_before, token_ids, slot.ids_after))


def _encode_safely(codec: TokenizerAdapter, slot: Slot, user_text: str) -> IntArray:
    # Where even a safe text makes a control token together with what the template writes, it is not said at all.
    for text in (slot.guard.safe_text(user_text), ""):
        token_ids = as_ids(codec.encode(slot.before + slot.edit(text) + slot.after))
        if slot.guard.controls_in(token_ids) == slot.controls:
            break
    return token_ids

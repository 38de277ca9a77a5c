"""A conversation becomes tokens, by a chat template that is learned once and verified.

In come messages and single texts; out come ids: of whole prompts, and of the *bridge* between a sampled reply and the
header of the next one, so that earlier ids never change. Everything is learned by rendering probe conversations with
the tokenizer at hand; no model name, no token name and no role marker is known here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.context.tokenizer import THINK_TAGS, Codec, ControlGuard, HFTokenizer
from turnwise.errors import ModelError
from turnwise.types import IntArray, Message

_log = logging.getLogger("turnwise.context")

_ASKED, _REPLIED, _ASKED_AGAIN = "qzaskedqz", "qzrepliedqz", "qzaskedagainqz"
"""Contents of the probe conversation: words that no template writes itself and none edits."""
_USER_PROBES = ("P_OG\n#..#", "\n  two lines\n\nand a tab\t ", "Reward: 0.5. 日本 🙂", "(Up || Down)")
_REPLY_PROBES = (
    ("Right", "I go\nDown.", "Up || Left"),
    ("<answer>Right</answer>", "<answer>Down</answer>", "<answer>Up</answer>"),
    ("<think>why</think>Right", "<think>so</think>Down", "Up"),
    ("<think>\nwhy\n</think>\n\nRight", "Down", "<think>\nso\n</think>\n\nUp"),
)
_SYSTEM_PROBE = Message("system", "qzsystemqz")
_MAX_SLOTS = 512
"""Prompts that share their preceding messages share a slot; a window that slides makes a new one every turn."""


def _keep(text: str) -> str:
    return text


_EDITS: tuple[Callable[[str], str], ...] = (_keep, str.strip, str.lstrip, str.rstrip)
"""What templates do to a user's text before they write it."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A fixed surrounding for a user's text. Only `before`, the text and `after` are tokenised when it is filled."""

    ids_before: IntArray
    before: str
    """Starts with an added token, so that what comes ahead of it has no say in how the text is tokenised."""
    after: str
    """Ends with an added token, for the same reason."""
    ids_after: IntArray
    edit: Callable[[str], str]
    controls: list[int]
    """The control ids that the template itself writes in `before` and `after`, in order."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the template writes around the contents of a two-turn conversation."""

    first: str
    reply_header: str
    between: str
    """From the end of the first reply to the second user text."""
    next_header: str


@dataclass(frozen=True, slots=True)
class _EndOfTurn:
    id: int
    text: str
    gap: str
    """From the end of turn to the next user text."""


class LearnedTemplate:
    """Implements `protocols.ChatTemplate` over a Hugging Face tokenizer.

    `rewrites_history` is true where appending is not provably the same as rendering the whole conversation again;
    `why_cut` then says what was seen. Texts that spell control tokens are edited, see `ControlGuard`.
    """

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._codec = Codec(tokenizer)
        frame = _learn_frame(self._codec)
        self._end = _learn_end_of_turn(self._codec, frame)
        self._stop_ids = frozenset({i for i in (self._end and self._end.id, self._codec.eos_id) if i is not None})
        if not self._stop_ids:
            raise ModelError(
                "No token ends a reply: the chat template writes no token of its own after a reply, and the tokenizer "
                "has no eos token. Set eos_token in tokenizer_config.json."
            )
        written = frame.first + frame.reply_header + frame.between
        self._guard = ControlGuard(self._codec, self._codec.encode(written), self._stop_ids)
        self._seen: set[tuple[Message, ...]] = set()
        self._slots: dict[tuple[Message, ...], _Slot | None] = {}
        self._header = frame.next_header
        self._header_ids = self._codec.encode(frame.next_header)
        self.accepts_system = self._probe_system()
        """Whether a conversation may start with a system message."""
        self._bridge = self._learn_bridge(frame)
        self.why_cut = self._find_reason_to_cut()
        """Why every turn needs a segment of its own; empty where it does not."""
        if self.why_cut:
            _log.warning("Episodes are cut into one segment per turn: %s.", self.why_cut)

    @property
    def stop_ids(self) -> frozenset[int]:
        return self._stop_ids

    @property
    def end_of_turn_id(self) -> int | None:
        """The token that the template writes after a reply; None where it writes only text."""
        return self._end.id if self._end else None

    @property
    def rewrites_history(self) -> bool:
        return bool(self.why_cut)

    def encode_prompt(self, messages: Sequence[Message]) -> IntArray:
        preceding, last = tuple(messages[:-1]), messages[-1]
        slot = self._slot_after(preceding) if last.role == "user" else None
        # A template may leave an empty message out altogether, so that it is no text in a slot.
        if slot is None or not last.content.strip():
            return self._render_and_encode(messages)
        return self._fill(slot, last.content)

    def encode_bridge(self, user_text: str, *, reply_is_closed: bool) -> IntArray:
        if self.why_cut or self._bridge is None:
            raise ModelError(
                f"This chat template has no bridge: {self.why_cut}. Expected a template that only appends. Encode the "
                "whole conversation with encode_prompt, and start a new segment for every turn."
            )
        token_ids = self._fill(self._bridge, user_text)
        return token_ids[1:] if reply_is_closed else token_ids

    def encode_text(self, text: str) -> IntArray:
        """The ids of a text at the start of a reply; control tokens may be spelled, nothing is added."""
        token_ids = self._codec.encode(self._header + text)
        start = len(self._header_ids)
        if token_ids[:start] != self._header_ids:
            # The header and the text share a token; the header is already with the engine, so the text stands alone.
            return _as_ids(self._codec.encode(text))
        return _as_ids(token_ids[start:])

    def decode_reply(self, token_ids: IntArray) -> str:
        ids = token_ids.tolist()
        if ids and ids[-1] in self._stop_ids:
            ids.pop()
        return self._codec.decode(ids)

    # --- encoding ---------------------------------------------------------------------------------------------------

    def _fill(self, slot: _Slot, user_text: str) -> IntArray:
        token_ids = self._encode_in(slot, user_text)
        if self._guard.controls_in(token_ids) != slot.controls:
            token_ids = self._encode_in(slot, self._guard.safe_text(user_text))
            if self._guard.controls_in(token_ids) != slot.controls:
                # Together with what the template writes, the text still makes a control token: it is not said at all.
                token_ids = self._encode_in(slot, "")
        return np.concatenate((slot.ids_before, token_ids, slot.ids_after))

    def _encode_in(self, slot: _Slot, text: str) -> IntArray:
        return _as_ids(self._codec.encode(slot.before + slot.edit(text) + slot.after))

    def _render_and_encode(self, messages: Sequence[Message]) -> IntArray:
        return _as_ids(self._codec.encode(self._codec.render(self._safe(messages))))

    def _safe(self, messages: Sequence[Message]) -> list[Message]:
        """System texts are the owner's and replies are the policy's own: only what the world says is guarded."""
        return [
            m if m.role in ("system", "assistant") else Message(m.role, self._guard.safe_text(m.content))
            for m in messages
        ]

    def _slot_after(self, preceding: tuple[Message, ...]) -> _Slot | None:
        """The slot behind these messages; learned when they come a second time, since most histories come once."""
        if preceding in self._slots:
            return self._slots[preceding]
        if preceding in self._seen:
            self._slots[preceding] = self._learn_prompt_slot(preceding)
            return self._slots[preceding]
        if len(self._seen) >= _MAX_SLOTS:
            self._seen.clear()
            self._slots.clear()
        self._seen.add(preceding)
        return None

    # --- learning ---------------------------------------------------------------------------------------------------

    def _learn_prompt_slot(self, preceding: tuple[Message, ...]) -> _Slot | None:
        safe = self._safe(preceding)

        def render(text: str) -> str:
            return self._codec.render([*safe, Message("user", text)])

        pieces = render(_ASKED).split(_ASKED)
        if len(pieces) != 2 or (edit := _learn_edit(render, pieces[0], pieces[1])) is None:
            return None
        slot = self._make_slot(pieces[0], pieces[1], edit)
        probes = (*_USER_PROBES, _ASKED)
        is_exact = all(self._fill(slot, text).tolist() == self._codec.encode(render(text)) for text in probes)
        return slot if is_exact else None

    def _learn_bridge(self, frame: _Frame) -> _Slot | None:
        if self._end is None:
            return None
        before = frame.first + _ASKED + frame.reply_header + _REPLIED + frame.between

        def render(text: str) -> str:
            return self._codec.render([*_probe_messages()[:2], Message("user", text)])

        edit = _learn_edit(render, before, frame.next_header)
        if edit is None:
            return None
        slot = self._make_slot(self._end.text + self._end.gap, frame.next_header, edit)
        return slot if self._fill(slot, _ASKED)[0] == self._end.id else None

    def _make_slot(self, before: str, after: str, edit: Callable[[str], str]) -> _Slot:
        """The slot that tokenises least, if it gives the ids of the whole text on every probe; else the whole."""
        whole = self._slot_between("", before, after, "", edit)
        start = max((begin for begin, _ in self._codec.added_in(before)), default=0)
        stop = min((end for _, end in self._codec.added_in(after)), default=len(after))
        short = self._slot_between(before[:start], before[start:], after[:stop], after[stop:], edit)
        is_same = all(
            np.array_equal(self._fill(short, text), self._fill(whole, text))
            for text in (*_USER_PROBES, _ASKED, "", " ")
        )
        return short if is_same else whole

    def _slot_between(self, done: str, before: str, after: str, rest: str, edit: Callable[[str], str]) -> _Slot:
        encode = self._codec.encode
        ids_after = encode(after + rest)[len(encode(after)) :]
        controls = self._guard.controls_in(_as_ids(encode(before + _ASKED + after)))
        return _Slot(_as_ids(encode(done)), before, after, _as_ids(ids_after), edit, controls)

    def _probe_system(self) -> bool:
        try:
            text = self._codec.render([_SYSTEM_PROBE, Message("user", _ASKED)])
        except ModelError:
            return False
        return _SYSTEM_PROBE.content in text

    # --- verifying --------------------------------------------------------------------------------------------------

    def _find_reason_to_cut(self) -> str:
        if self._end is None:
            return "the chat template marks the end of a reply with no token of its own"
        if self._bridge is None:
            return "the chat template edits user texts in a way that cannot be learned"
        openings: list[list[Message]] = [[], [_SYSTEM_PROBE]] if self.accepts_system else [[]]
        # Thinking is not always marked by the common tags: a template that drops it names the marks it looks for.
        marked = [(f"why{mark}Right",) * 3 for mark in self._codec.template_marks if mark != self._end.text]
        for opening in openings:
            for replies in (*_REPLY_PROBES, *marked):
                if reason := self._compare(opening, replies, self._end, self._bridge):
                    return reason
        return ""

    def _compare(self, opening: list[Message], replies: Sequence[str], end: _EndOfTurn, bridge: _Slot) -> str:
        """Play a conversation by appending, and compare it with the tokenizer's own rendering after every turn."""
        messages = [*opening, Message("user", _USER_PROBES[0])]
        text, token_ids = self._codec.render(messages), self.encode_prompt(messages).tolist()
        for reply, user_text in zip(replies, _USER_PROBES[1:], strict=True):
            messages += [Message("assistant", reply), Message("user", user_text)]
            rendered = self._codec.render(messages)
            if not rendered.startswith(text):
                return f"the chat template writes the header of a reply differently later (seen with {reply!r})"
            text += reply + end.text
            if not rendered.startswith(text):
                return f"the chat template rewrites earlier replies once later turns exist (seen with {reply!r})"
            closed = self._codec.encode(text)
            if closed[: len(token_ids)] != token_ids:
                return f"the tokens of a reply's header depend on the reply (seen with {reply!r})"
            text, token_ids = rendered, closed + self._fill(bridge, user_text).tolist()[1:]
            if self._codec.encode(text) != token_ids:
                return f"the tokens between two replies depend on what stands around them (seen with {user_text!r})"
        return ""


def _as_ids(token_ids: Sequence[int]) -> IntArray:
    return np.array(token_ids, dtype=np.int32)


def _probe_messages() -> list[Message]:
    return [Message("user", _ASKED), Message("assistant", _REPLIED), Message("user", _ASKED_AGAIN)]


def _learn_frame(codec: Codec) -> _Frame:
    rest, pieces = codec.render(_probe_messages()), []
    for message in _probe_messages():
        if rest.count(message.content) != 1:
            raise ModelError(
                f"The chat template does not write the text of the {message.role} exactly once: a probe conversation "
                f"was rendered as {codec.render(_probe_messages())[:300]!r}. Expected a template for conversations of "
                "plain text over many turns. Use another chat template, or put one next to tokenizer_config.json."
            )
        piece, rest = rest.split(message.content)
        pieces.append(piece)
    first, reply_header, between = pieces
    return _Frame(first, reply_header, between, rest)


def _learn_end_of_turn(codec: Codec, frame: _Frame) -> _EndOfTurn | None:
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
    return _EndOfTurn(token_id, spelling, frame.between[stop:])


def _learn_edit(render: Callable[[str], str], before: str, after: str) -> Callable[[str], str] | None:
    """Which of the known edits gives what the template makes of every probe; None if it is another one."""
    rendered = {probe: render(probe) for probe in _USER_PROBES}
    for edit in _EDITS:
        if all(before + edit(probe) + after == text for probe, text in rendered.items()):
            return edit
    return None

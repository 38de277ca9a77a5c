"""Bridges over turns with tools: from a reply that calls to the header of the next one, with the results in between.

In come the messages that follow a sampled reply, and the tools of the conversation; out come the ids of the bridge, or
the reason why there is none. The messages are rendered behind a probe reply and cut off at its end. That this is right
is proven for each set of tools and each order of roles when they first come: conversations are played by appending and
compared with the tokenizer's own rendering, with several replies, so that nothing in a bridge depends on what was
sampled. It refuses to know which tools there are and what they do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from turnwise.context.template_slots import ASKED, USER_PROBES, EndOfTurn, Slot, as_ids, fill
from turnwise.context.tokenizer import THINK_TAGS, TokenizerAdapter
from turnwise.context.tool_calls import ToolSyntax, find_end_of_reply, probe_reply
from turnwise.errors import ModelError
from turnwise.types import IntArray, Message, ToolSchema

_log = logging.getLogger("turnwise.context")

Tools: TypeAlias = tuple[ToolSchema, ...]

_MAX_KEPT = 256
"""Proofs and forms that are remembered; they are found anew where a run has more kinds of turns than that."""
_MAX_RECENT = 16
"""Bridges that are remembered: whoever asks whether there is one asks for it next."""
_WORD = "qzwordqz"
_RESULT_PROBES = ('{"degrees": 17.5, "sky": "clear"}', "P_OG\n#..#", "Error: 日本 🙂", " two lines\n\nand a tab\t ")


@dataclass(frozen=True, slots=True)
class _Form:
    """What a bridge over messages of one form looks like, whatever they say."""

    prefix: str
    """The probe conversation up to the end of its reply."""
    controls: list[int]
    """The control ids that the template itself writes in the bridge, in order."""


class ToolTurnEncoder:
    """The bridges of one template over turns with tools."""

    def __init__(
        self,
        codec: TokenizerAdapter,
        end: EndOfTurn,
        syntax: ToolSyntax,
        openings: Sequence[list[Message]],
        user_slot: Slot,
    ) -> None:
        """`openings` are what conversations may begin with; `user_slot` is the bridge over a user's text alone."""
        self._codec = codec
        self._end = end
        self._syntax = syntax
        self._openings = openings
        guard = syntax.guard
        controls = guard.controls_in(as_ids(codec.encode(user_slot.before + ASKED + user_slot.after)))
        self._user_slot = replace(user_slot, guard=guard, controls=controls)
        self._proofs: dict[tuple[Tools, tuple[str, ...]], str] = {}
        self._forms: dict[tuple[Tools, tuple[Message, ...]], _Form | None] = {}
        self._recent: dict[tuple[Tools, tuple[Message, ...]], IntArray | None] = {}
        self._told: set[tuple[tuple[str, ...], str]] = set()

    def find_reason_to_cut(self, roles: tuple[str, ...], tools: Tools) -> str:
        """Why such messages cannot be bridged; empty where it is proven that they can."""
        num_results = roles.count("tool")
        if not roles or roles[num_results:] not in ((), ("user",)):
            return f"between two replies stand messages of the roles [{', '.join(roles)}]"
        key = (tools, roles)
        if key not in self._proofs:
            _make_room(self._proofs, _MAX_KEPT)
            self._proofs[key] = self._prove(roles, tools)
            self._tell(roles, self._proofs[key])
        return self._proofs[key]

    def encode(self, messages: Sequence[Message], tools: Tools) -> IntArray | None:
        """The bridge from the end of turn on, itself included; None where what the messages say leaves none."""
        if len(messages) == 1 and messages[0].role == "user":
            return fill(self._codec, self._user_slot, messages[0].text)
        key = (tools, tuple(messages))
        if key not in self._recent:
            _make_room(self._recent, _MAX_RECENT)
            self._recent[key] = self._encode(messages, tools)
        return self._recent[key]

    def _encode(self, messages: Sequence[Message], tools: Tools) -> IntArray | None:
        form = self._form_of(messages, tools)
        for said in self._ways_to_say(messages):
            text = self._render(said, tools)
            if form is None or text is None or not text.startswith(form.prefix):
                return None
            token_ids = as_ids(self._codec.encode(text[len(form.prefix) :]))
            if self._syntax.guard.controls_in(token_ids) == form.controls:
                token_ids.setflags(write=False)
                return token_ids
        return None

    def _tell(self, roles: tuple[str, ...], reason: str) -> None:
        if reason and (roles, reason) not in self._told:
            self._told.add((roles, reason))
            _log.warning("With tools, messages of [%s] begin a new segment: %s.", ", ".join(roles), reason)

    # --- rendering --------------------------------------------------------------------------------------------------

    def _form_of(self, messages: Sequence[Message], tools: Tools) -> _Form | None:
        plain = tuple(
            Message(m.role, _WORD, (), _WORD if m.tool_call_id else "", _WORD if m.name else "") for m in messages
        )
        key = (tools, plain)
        if key not in self._forms:
            _make_room(self._forms, _MAX_KEPT)
            self._forms[key] = self._learn_form(plain, tools)
        return self._forms[key]

    def _learn_form(self, plain: Sequence[Message], tools: Tools) -> _Form | None:
        text = self._render(plain, tools)
        stop = find_end_of_reply(text, self._reference(plain), self._end) if text else -1
        if text is None or stop < 0:
            return None
        return _Form(text[:stop], self._syntax.guard.controls_in(as_ids(self._codec.encode(text[stop:]))))

    def _render(self, messages: Sequence[Message], tools: Tools) -> str | None:
        conversation = [Message("user", ASKED), self._reference(messages), *messages]
        try:
            return self._codec.render(conversation, tools, self._syntax.dialect)
        except ModelError:
            return None

    def _reference(self, messages: Sequence[Message]) -> Message:
        return probe_reply(0, num_calls=self._count_calls([m.role for m in messages]))

    def _count_calls(self, roles: Sequence[str]) -> int:
        return max(1, roles.count("tool")) if self._syntax.takes_many_calls else 1

    def _ways_to_say(self, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
        """As they are; without control tokens; and not at all, where a text makes one with what stands around it."""
        yield messages
        safe = [self._syntax.guard.safe_message(message) for message in messages]
        yield safe
        yield [replace(message, content="") for message in safe]

    # --- proving ----------------------------------------------------------------------------------------------------

    def _prove(self, roles: tuple[str, ...], tools: Tools) -> str:
        for number, opening in enumerate(self._openings):
            # Marks are looked for once: they are about what a reply says, not about how a conversation begins.
            for said in self._probe_texts(with_marks=number == 0):
                if reason := self._compare(opening, roles, tools, said):
                    return reason
        return ""

    def _probe_texts(self, *, with_marks: bool) -> list[str]:
        """What a reply may say beside its calls; thinking is written as templates that know it write it."""
        if not self._syntax.writes_text:
            return [""]
        known = {self._end.text, *THINK_TAGS}
        marks = [f"qzwhyqz{mark}qzsaidqz" for mark in self._codec.tool_template_marks if mark not in known]
        return ["", "qzsaidqz", "<think>\nqzwhyqz\n</think>\n\nqzsaidqz", *(marks if with_marks else [])]

    def _compare(self, opening: list[Message], roles: tuple[str, ...], tools: Tools, said: str) -> str:
        """Play a conversation by appending, and compare it with the tokenizer's own rendering after every turn."""
        messages = [*opening, Message("user", USER_PROBES[0])]
        turns = _probe_turns(roles, said, self._count_calls(roles))
        try:
            text = self._codec.render(messages, tools, self._syntax.dialect)
            for number, (reply, following) in enumerate(turns, start=1):
                messages += [reply, *following]
                rendered = self._codec.render(messages, tools, self._syntax.dialect)
                if reason := self._compare_turn(text, rendered, reply, following, tools):
                    return f"{reason} (seen with reply {number} of a conversation with tools)"
                text = rendered
        except ModelError as error:
            return f"the chat template refuses a conversation with tools: {error.__cause__ or error}"
        return ""

    def _compare_turn(self, before: str, after: str, reply: Message, following: list[Message], tools: Tools) -> str:
        """`before` is the conversation up to the header of the reply, `after` the one with what follows it."""
        if not after.startswith(before):
            return "the chat template rewrites earlier messages once later ones exist"
        stop = self._end_of(reply, after, len(before))
        if stop < 0:
            return "the chat template does not end a reply with calls like any other"
        if (self._syntax.writes_text or not reply.tool_calls) and reply.text not in after[len(before) : stop]:
            return f"the chat template leaves out a part of earlier replies (seen with {reply.text!r})"
        before_ids, after_ids = self._codec.encode(before), self._codec.encode(after)
        closed_ids = self._codec.encode(after[: stop + len(self._end.text)])
        if closed_ids[: len(before_ids)] != before_ids:
            return "the tokens of a reply's header depend on the reply"
        bridge = self.encode(following, tools)
        if bridge is None or closed_ids + bridge.tolist()[1:] != after_ids:
            return "what stands between two replies depends on what is around it"
        return ""

    def _end_of(self, reply: Message, text: str, start: int) -> int:
        if reply.tool_calls:
            return find_end_of_reply(text, reply, self._end, start)
        place = text.find(reply.text, start)
        return text.find(self._end.text, place + len(reply.text)) if place >= 0 else -1


def _probe_turns(roles: tuple[str, ...], said: str, num_calls: int) -> list[tuple[Message, list[Message]]]:
    """Replies, and what follows each: results alone first, since they may stand earlier in any such conversation."""
    calling = [probe_reply(number, num_calls=num_calls, said=said) for number in (1, 2, 3)]
    results = tuple(role for role in roles if role == "tool") or ("tool",)
    # A user's text without results before it follows a reply that calls nothing.
    replies = (
        [Message("assistant", "qzdoneqz"), Message("assistant", "qzgoodqz")] if roles == ("user",) else calling[1:]
    )
    return [
        (calling[0], _following(calling[0], results, 0)),
        *((reply, _following(reply, roles, shift)) for shift, reply in enumerate(replies, start=1)),
    ]


def _following(reply: Message, roles: Sequence[str], shift: int) -> list[Message]:
    messages: list[Message] = []
    for place, role in enumerate(roles):
        if role == "user":
            messages.append(Message("user", USER_PROBES[(place + shift) % len(USER_PROBES)]))
        else:
            call = reply.tool_calls[min(place, len(reply.tool_calls) - 1)]
            text = _RESULT_PROBES[(place + shift) % len(_RESULT_PROBES)]
            messages.append(Message("tool", text, (), call.id, call.name))
    return messages


def _make_room(kept: dict, limit: int) -> None:
    if len(kept) >= limit:
        kept.clear()
